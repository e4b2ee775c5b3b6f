//! The model: every state of the small world, and every move that anybody can make in it.

use stateright::{Model, Property};
use tidegate::error::Kind;
use tidegate::handoff::rules::{
    Identity, PLUGIN, Phase, Recorded, Resume, Server, Slot as SlotSeen,
};

use crate::invariants;
use crate::process::{Process, Step, Target, View, Why};
use crate::rules::{Rules, Wrong};
use crate::world::*;

/// The size of the world.
#[derive(Clone, Debug)]
pub struct Handoff {
    pub rules: Rules,
    pub initial: [u8; KEYS],
    /// What the sessions of the source do, each in its order.
    pub scripts: [Script; SESSIONS],
    /// How many processes may be started, one after another.
    pub starts: u8,
    /// A process may be started while the last one is alive; a connection may be cut unnoticed.
    pub zombies: bool,
    /// Puts whose answer gets lost: stored at once, later, after a crash, or never.
    pub lost_answers: u8,
    /// Times that somebody drops, or advances, or makes our slot anew.
    pub meddling: u8,
    /// A lost history is answered with a new generation (`on_lost_history = "resnapshot"`).
    pub resnapshot: bool,
    /// Also look for examples of the situations the model is about.
    pub examples: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub source: Source,
    pub slot: Option<Slot>,
    pub ledger: Ledger,
    pub tables: [Table; TABLES],
    pub processes: [Option<Process>; 2],
    pub started: u8,
    /// A put under way, whose sender will get no answer.
    pub flying: Option<Put>,
    pub lost_answers: u8,
    pub meddled: u8,
    /// A key was seen with a lower position than before.
    pub fell: bool,
    /// A commit of an older process followed one of a newer.
    pub overtaken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Session(usize),
    Start,
    Crash(usize),
    /// The server sees the connection break; the process does not.
    Cut(usize),
    /// Now it does.
    Notice(usize),
    DropSlot,
    AdvanceSlot,
    /// The put under way is stored, if its version is still free.
    Land,
    Put(usize, Target),
    /// The same, but the answer is lost.
    PutUnanswered(usize, Target),
    /// A process that got no answer looks what is there.
    Look(usize),
    /// Only in a wrong way: it puts again instead.
    PutAgain(usize),
    MakeBoundary(usize),
    OtherHalf(usize),
    StartReplication(usize),
    /// It looks whether the ledger is still as it left it.
    Confirm(usize),
    Receive(usize),
    /// Only in a wrong way.
    ReceiveHalf(usize),
    Keepalive(usize),
    CloseBatch(usize),
    Acknowledge(usize),
}

const SERVER: Identity<'static> =
    Identity { system_identifier: "1", timeline: 1, database: "shop" };

impl State {
    fn seen_slot(&self) -> Option<SlotSeen<'static>> {
        self.slot.map(|slot| SlotSeen {
            database: SERVER.database,
            plugin: PLUGIN,
            active: slot.active != 0,
            confirmed: lsn(slot.confirmed),
            lost: false,
        })
    }

    pub fn streams(&self, process: &Process) -> bool {
        self.slot.is_some_and(|slot| slot.active == process.id)
    }

    pub fn living(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().flatten().filter(|p| p.alive())
    }

    /// The last process says that it may be started again, as a supervisor does.
    fn is_to_be_restarted(&self, resnapshot: bool) -> bool {
        let last = self.processes.iter().flatten().max_by_key(|p| p.id);
        let again = |p: &Process| match p.step {
            Step::Stopped(Why::HistoryLost) => resnapshot,
            Step::Stopped(why) => matches!(why, Why::Fenced | Why::SlotInUse | Why::Disconnected),
            _ => false,
        };
        last.is_some_and(again)
    }

    fn release(&mut self, id: u8) {
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.active == id) {
            slot.active = 0;
        }
    }

    /// Stores a put if its version is the next one, or whatever is there if `blind`.
    fn store(&mut self, put: &Put, rules: &Rules) -> bool {
        match *put {
            Put::Ledger(ledger) => {
                let blind = rules.is(Wrong::LedgerWithoutCas);
                if ledger.version != self.ledger.version + 1 && !blind {
                    return false;
                }
                self.overtaken |= ledger.writer < self.ledger.writer;
                self.ledger = Ledger { version: self.ledger.version + 1, ..ledger };
            }
            Put::Table { table, version, commit } => {
                let table = &mut self.tables[table];
                let handoff = commit.generation > table.generation;
                let blind = match handoff {
                    true => rules.is(Wrong::HandoffWithoutCas),
                    false => rules.is(Wrong::TableWithoutCas) && version > 1,
                };
                if version != table.version + 1 && !blind {
                    return false;
                }
                self.overtaken |= commit.writer < table.writer;
                table.version += 1;
                table.rows = table.rows.after(&commit.masks, &commit.adds);
                table.writer = commit.writer;
                (table.generation, table.run) = (commit.generation, commit.run);
                (table.base, table.applied) = (commit.base, commit.applied);
                table.history |= Positions::from(1u8) << commit.applied;
                for row in table.rows.iter() {
                    let seen = &mut table.seen[usize::from(row.key)];
                    self.fell |= (row.lsn, row.seq) < *seen;
                    *seen = (*seen).max((row.lsn, row.seq));
                }
            }
        }
        true
    }

    /// Version and writer of the log that a put is for.
    fn head(&self, put: &Put) -> (u8, u8) {
        match put {
            Put::Ledger(_) => (self.ledger.version, self.ledger.writer),
            Put::Table { table, .. } => (self.tables[*table].version, self.tables[*table].writer),
        }
    }

    /// After a conflict, or without an answer: done, not there, or somebody else's?
    fn look(&mut self, mut process: Process, target: Target, put: Put, rules: &Rules) -> Process {
        let (version, writer) = self.head(&put);
        process.unsure = None;
        let run = process.ledger.run;
        match target.table().map(|t| (t, self.tables[t])) {
            _ if version < put.version() => {}
            _ if version == put.version() && writer == process.id => {
                self.stored(&mut process, target, put, rules);
            }
            Some((table, found)) if process.step == Step::Publish && found.run == run => {
                process.published_already(table, &found, rules);
            }
            _ => process.step = Step::Stopped(Why::Fenced),
        }
        process
    }

    fn stored(&mut self, process: &mut Process, target: Target, put: Put, rules: &Rules) {
        process.stored(target, put, rules);
        if process.step == Step::Publish && target.table().is_none() {
            process.open_tables(&self.tables, rules);
        }
        let new_generation = matches!(process.step, Step::MakeBoundary { .. });
        if rules.is(Wrong::EmptyFirst) && target == Target::Claim && new_generation {
            for table in self.tables.iter_mut().filter(|table| table.version > 0) {
                (table.rows, table.version) = (Rows::default(), table.version + 1);
            }
        }
    }

    fn start(&mut self, rules: &Rules, resnapshot: bool) {
        self.started += 1;
        let phase = match self.ledger.stage {
            Stage::Nothing => None,
            Stage::Copying => Some(Phase::Copying),
            Stage::Publishing => Some(Phase::Publishing),
            Stage::Streaming => Some(Phase::Streaming),
        };
        let reached = self.tables.iter().map(|t| t.applied).fold(self.ledger.fence, u8::max);
        let recorded = phase.map(|phase| Recorded {
            identity: SERVER,
            phase,
            base: lsn(self.ledger.base),
            fence: lsn(self.ledger.fence),
            reached: lsn(reached),
            spool: None,
        });
        let server =
            Server { identity: SERVER, position: lsn(self.source.end), left_timeline_at: None };
        let resume = rules.resume(recorded.as_ref(), &server, self.seen_slot().as_ref());
        let resume = match resume {
            Resume::Refuse(refusal) if resnapshot && refusal.kind() == Kind::HistoryLost => {
                Resume::RestartSnapshot
            }
            resume => resume,
        };
        let generation = self.next_generation(rules);
        let process = Process::new(self.started, self.ledger, generation, resume);
        if let Some(place) = self.processes.iter_mut().find(|p| !p.is_some_and(|p| p.alive())) {
            *place = Some(process);
        }
    }

    /// Above every generation that is visible, or that another process may be publishing yet. One
    /// that was still copying can't be published once its ledger is taken over, so its number is
    /// free; a lower one is not, as it may be that of a run that published before it.
    fn next_generation(&self, rules: &Rules) -> u8 {
        let published = self.tables.iter().map(|table| table.generation).fold(0, u8::max);
        let copying = self.ledger.stage <= Stage::Copying;
        match copying {
            _ if rules.is(Wrong::NumberByTables) => published + 1,
            true => self.ledger.generation.max(published + 1),
            false => published.max(self.ledger.generation) + 1,
        }
    }

    fn make_slot(&mut self, process: &mut Process, drop_slot: bool) {
        match self.slot {
            Some(slot) if slot.active != 0 => process.step = Step::Stopped(Why::SlotInUse),
            Some(_) if !drop_slot => process.step = Step::Stopped(Why::SlotInTheWay),
            _ => {
                process.base = self.source.end;
                self.slot =
                    Some(Slot { confirmed: process.base, made_at: process.base, active: 0 });
            }
        }
    }

    fn start_replication(&mut self, process: &mut Process, rules: &Rules) {
        let from = process.ledger.fence;
        let Some(seen) = self.seen_slot() else {
            process.step = Step::Stopped(Why::HistoryLost);
            return;
        };
        if seen.active {
            process.step = Step::Stopped(Why::SlotInUse);
        } else if !rules.may_stream(lsn(from), &seen) {
            process.step = Step::Stopped(Why::HistoryLost);
        } else {
            if let Some(slot) = &mut self.slot {
                slot.active = process.id;
                // The server moves a start below the confirmed position up to it.
                process.from = from.max(slot.confirmed);
            }
            process.views = std::array::from_fn(|table| View::from(&self.tables[table]));
            (process.finished, process.received) = (from, from);
            process.step = Step::Confirm;
        }
    }

    fn acknowledgeable(&self, process: &Process, rules: &Rules) -> Option<u8> {
        let slot = self.slot.filter(|slot| slot.active == process.id)?;
        let fence = lsn(process.ledger.fence);
        let tables = if process.step == Step::Fence { lsn(process.batch_end) } else { fence };
        let (received, confirmed) = (lsn(process.received), lsn(slot.confirmed));
        let ack = position(rules.may_acknowledge(fence, tables, received, confirmed));
        (ack > slot.confirmed).then_some(ack)
    }

    fn process_actions(&self, i: usize, process: &Process, model: &Handoff, to: &mut Vec<Action>) {
        for target in process.targets(&model.rules) {
            to.push(Action::Put(i, target));
            if self.lost_answers < model.lost_answers {
                to.push(Action::PutUnanswered(i, target));
            }
        }
        if process.unsure.is_some() {
            let again = model.rules.is(Wrong::RetryBlindly) && process.step == Step::Commit;
            to.push(if again { Action::PutAgain(i) } else { Action::Look(i) });
        }
        let connected = self.streams(process);
        match process.step {
            Step::MakeBoundary { .. } => to.push(Action::MakeBoundary(i)),
            Step::OtherHalf { .. } => to.push(Action::OtherHalf(i)),
            Step::StartReplication => to.push(Action::StartReplication(i)),
            Step::Confirm => to.push(Action::Confirm(i)),
            Step::Follow => {
                if connected && !process.torn {
                    match process.next(&self.source) {
                        Some(next) => {
                            to.push(Action::Receive(i));
                            if model.rules.is(Wrong::CutTransaction) && next.changes().len() > 1 {
                                to.push(Action::ReceiveHalf(i));
                            }
                        }
                        None if process.received < self.source.end => to.push(Action::Keepalive(i)),
                        None => {}
                    }
                }
                if !connected {
                    to.push(Action::Notice(i));
                }
                if process.received > process.finished || process.torn {
                    to.push(Action::CloseBatch(i));
                }
            }
            _ => {}
        }
        if self.acknowledgeable(process, &model.rules).is_some() {
            to.push(Action::Acknowledge(i));
        }
        if self.started < model.starts {
            to.push(Action::Crash(i));
            if model.zombies && connected {
                to.push(Action::Cut(i));
            }
        }
    }
}

impl Model for Handoff {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            source: Source::new(self.initial),
            slot: None,
            ledger: Ledger::default(),
            tables: Default::default(),
            processes: [None; 2],
            started: 0,
            flying: None,
            lost_answers: 0,
            meddled: 0,
            fell: false,
            overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (session, script) in self.scripts.iter().enumerate() {
            if state.source.step(session, script).is_some() {
                actions.push(Action::Session(session));
            }
        }
        let living = state.living().count();
        let budget = state.started < self.starts && (living == 0 || self.zombies && living == 1);
        if budget || living == 0 && state.is_to_be_restarted(self.resnapshot) {
            actions.push(Action::Start);
        }
        if state.flying.is_some() {
            actions.push(Action::Land);
        }
        if let Some(slot) = state.slot.filter(|s| s.active == 0 && state.meddled < self.meddling) {
            actions.push(Action::DropSlot);
            if slot.confirmed < state.source.end {
                actions.push(Action::AdvanceSlot);
            }
        }
        for (i, process) in state.processes.iter().enumerate() {
            if let Some(process) = process.as_ref().filter(|p| p.alive()) {
                state.process_actions(i, process, self, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let (mut state, rules) = (*last, &self.rules);
        match action {
            Action::Session(session) => {
                state.source = last.source.step(session, &self.scripts[session])?;
            }
            Action::Start => state.start(rules, self.resnapshot),
            Action::Crash(i) | Action::Cut(i) => {
                state.release(last.processes[i]?.id);
                if let Action::Crash(_) = action {
                    state.processes[i] = None;
                }
            }
            Action::DropSlot => (state.slot, state.meddled) = (None, last.meddled + 1),
            Action::AdvanceSlot => {
                state.slot.as_mut()?.confirmed = last.source.end;
                state.meddled += 1;
            }
            Action::Land => {
                let put = state.flying.take()?;
                state.store(&put, rules);
            }
            Action::Put(i, _)
            | Action::PutUnanswered(i, _)
            | Action::Look(i)
            | Action::Notice(i)
            | Action::PutAgain(i)
            | Action::MakeBoundary(i)
            | Action::OtherHalf(i)
            | Action::StartReplication(i)
            | Action::Confirm(i)
            | Action::Receive(i)
            | Action::ReceiveHalf(i)
            | Action::Keepalive(i)
            | Action::CloseBatch(i)
            | Action::Acknowledge(i) => {
                let process = state.act(last.processes[i]?, action, rules)?;
                if !process.alive() {
                    state.release(process.id);
                }
                state.processes[i] = Some(process);
            }
        }
        Some(state)
    }

    /// Some wrong ways go round and round.
    fn within_boundary(&self, state: &State) -> bool {
        let endless = |version: u8| version > crate::size::handoff::VERSIONS;
        !endless(state.ledger.version) && !state.tables.iter().any(|t| endless(t.version))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants::properties(self)
    }
}

impl State {
    fn act(&mut self, mut process: Process, action: Action, rules: &Rules) -> Option<Process> {
        match action {
            Action::Put(_, target) => {
                let put = process.put(target, &self.source, rules);
                match self.store(&put, rules) {
                    true => self.stored(&mut process, target, put, rules),
                    false => process = self.look(process, target, put, rules),
                }
            }
            Action::PutUnanswered(_, target) => {
                self.flying = Some(process.put(target, &self.source, rules));
                self.lost_answers += 1;
                process.unsure = Some(target);
            }
            Action::Look(_) => {
                let target = process.unsure?;
                let put = process.put(target, &self.source, rules);
                process = self.look(process, target, put, rules);
            }
            Action::PutAgain(_) => {
                let target = process.unsure.take()?;
                let table = &mut process.views[target.table()?];
                table.version = self.tables[target.table()?].version;
                let put = process.put(target, &self.source, rules);
                self.store(&put, rules);
                process.stored(target, put, rules);
            }
            Action::MakeBoundary(_) => {
                let Step::MakeBoundary { drop_slot } = process.step else { return None };
                process.step = Step::Copy;
                let after = rules.is(Wrong::PositionAfterSnapshot);
                if !after {
                    self.make_slot(&mut process, drop_slot);
                }
                process.snapshot = self.source.values(self.source.end);
                let apart = after || rules.is(Wrong::PositionBeforeSnapshot);
                if apart && process.alive() {
                    process.step = Step::OtherHalf { drop_slot };
                }
            }
            Action::OtherHalf(_) => {
                let Step::OtherHalf { drop_slot } = process.step else { return None };
                process.step = Step::Copy;
                match rules.is(Wrong::PositionAfterSnapshot) {
                    true => self.make_slot(&mut process, drop_slot),
                    false => process.snapshot = self.source.values(self.source.end),
                }
            }
            Action::Notice(_) => process.step = Step::Stopped(Why::Disconnected),
            Action::StartReplication(_) => self.start_replication(&mut process, rules),
            Action::Confirm(_) => {
                process.step = match rules.may_go_on(process.ledger.version, self.ledger.version) {
                    true => Step::Follow,
                    false => Step::Stopped(Why::Fenced),
                }
            }
            Action::Receive(_) => process.received = process.next(&self.source)?.end(),
            Action::ReceiveHalf(_) => {
                process.received = process.next(&self.source)?.commit;
                process.torn = true;
            }
            Action::Keepalive(_) => process.received = self.source.end,
            Action::CloseBatch(_) => process.close_batch(&self.source, rules),
            Action::Acknowledge(_) => {
                let ack = self.acknowledgeable(&process, rules)?;
                self.slot.as_mut()?.confirmed = ack;
            }
            _ => return None,
        }
        Some(process)
    }
}
