//! The model of the spool: the processes, and every move that anybody can make.

use stateright::{Model, Property};
use tidegate::handoff::rules::still_ours;

use crate::size::spool::FILES;
use crate::spool::promise;
use crate::spool::rules::{Rules, Wrong};
use crate::spool::world::{Files, Ledger, Log, Messages, Slot, Step, Table, messages_of};

/// The size of the world.
#[derive(Clone, Debug)]
pub struct Spool {
    pub rules: Rules,
    pub transactions: u8,
    /// How many processes may be started, one after another.
    pub starts: u8,
    /// A process may be started while the last one is alive; a connection may be cut unnoticed.
    pub zombies: bool,
    /// Times that somebody else moves the slot.
    pub meddling: u8,
    /// Also look for examples of the situations the model is about.
    pub examples: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub log: Log,
    pub slot: Slot,
    pub files: Files,
    /// Files that were ever stored: no name is used twice.
    pub named: u8,
    pub ledger: Ledger,
    pub table: Table,
    pub processes: [Option<Process>; 2],
    pub started: u8,
    pub meddled: u8,
    /// A start found steps that do not join, or a file missing.
    pub broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum At {
    /// It has looked, and takes the ledger over.
    Claim,
    /// It lists the spool's folder, for files that no record names.
    List,
    /// Is the ledger still its own?
    Look,
    /// It removes those of the listed.
    Remove,
    /// It takes the slot, to spool.
    Connect,
    Spool,
    /// A step's file is stored, and its record comes next.
    Record,
    /// Only in a wrong way: it is recorded, and its file comes next.
    File,
    /// It takes the slot, to drain.
    Attach,
    /// It streams and has loaded the table; is the ledger still its own?
    Confirm,
    Follow,
    Fence,
    Stopped(Why),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    Fenced,
    SlotInUse,
    HistoryLost,
    Disconnected,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    pub id: u8,
    pub at: At,
    /// As it knows them.
    pub ledger: Ledger,
    pub table: Table,
    /// The server sends what commits at or after this.
    pub from: u8,
    /// Everything that commits before this was received.
    pub received: u8,
    /// Messages of the next transaction that were received.
    pub open: u8,
    /// Only in the wrong ways: where the step whose file is stored ends.
    pub stored: u8,
    pub file: u8,
    /// Files that it has found in the spool's folder, as bits.
    pub listed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Commit,
    Meddle,
    Start,
    Crash(usize),
    /// The server sees the connection break; the process does not.
    Cut(usize),
    Notice(usize),
    Claim(usize),
    List(usize),
    Look(usize),
    Remove(usize),
    Connect(usize),
    Receive(usize),
    Keepalive(usize),
    Store(usize),
    Record(usize),
    /// Only in a wrong way.
    StoreLate(usize),
    Acknowledge(usize),
    /// The last chunk is copied: the table is published, the drain begins.
    Publish(usize),
    Attach(usize),
    Confirm(usize),
    /// A batch of one transaction, or of everything up to now.
    Batch(usize, bool),
    Fence(usize),
    Tidy(usize),
}

impl Process {
    pub fn alive(&self) -> bool {
        !matches!(self.at, At::Stopped(_))
    }

    fn stop(&mut self, why: Why) {
        self.at = At::Stopped(why);
    }

    /// Everything that commits before this is durable in its eyes.
    fn durable(&self) -> u8 {
        match self.at {
            At::Follow | At::Fence => self.ledger.fence.max(self.from),
            _ => self.ledger.spool_end(),
        }
    }
}

impl State {
    pub fn living(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().flatten().filter(|p| p.alive())
    }

    pub fn stopped(&self, why: Why) -> bool {
        self.processes.iter().flatten().any(|p| p.at == At::Stopped(why))
    }

    fn holds_slot(&self, process: &Process) -> bool {
        self.slot.active == process.id
    }

    fn is_to_be_restarted(&self) -> bool {
        let last = self.processes.iter().flatten().max_by_key(|p| p.id);
        last.is_some_and(|p| {
            matches!(p.at, At::Stopped(Why::Fenced | Why::SlotInUse | Why::Disconnected))
        })
    }

    fn release(&mut self, id: u8) {
        if self.slot.active == id {
            self.slot.active = 0;
        }
    }

    fn acknowledgeable(&self, process: &Process, rules: &Rules) -> Option<u8> {
        let streams =
            matches!(process.at, At::Spool | At::Record | At::File | At::Follow | At::Fence);
        if !streams || !self.holds_slot(process) {
            return None;
        }
        let stored = if process.at == At::Record { process.stored } else { 0 };
        let (received, confirmed) = (process.received, self.slot.confirmed);
        let ack = rules.may_acknowledge(process.durable(), stored, received, confirmed);
        (ack > confirmed).then_some(ack)
    }

    /// Puts a record, if nobody put one since the process looked.
    fn put(&mut self, process: &mut Process, blind: bool, change: impl Fn(&mut Ledger)) -> bool {
        if process.ledger.version != self.ledger.version && !blind {
            process.stop(Why::Fenced);
            return false;
        }
        change(&mut self.ledger);
        self.ledger.version += 1;
        process.ledger = self.ledger;
        true
    }

    fn start(&mut self, rules: &Rules) {
        self.started += 1;
        let ledger = self.ledger;
        let from = rules.needed_from_slot(ledger.needed(), ledger.spooled());
        let at = match self.slot.active {
            0 if !rules.may_stream(from, Some(&self.slot.seen())) => At::Stopped(Why::HistoryLost),
            0 => At::Claim,
            _ => At::Stopped(Why::SlotInUse),
        };
        let table = Table::default();
        let (id, from, received) = (self.started, 0, 0);
        let process = Process {
            id,
            at,
            ledger,
            table,
            from,
            received,
            open: 0,
            stored: 0,
            file: 0,
            listed: 0,
        };
        if let Some(place) = self.processes.iter_mut().find(|p| !p.is_some_and(|p| p.alive())) {
            *place = Some(process);
        }
    }

    /// Takes the slot, and proves with the slot held that it has everything from `from` on.
    fn take_slot(&mut self, process: &mut Process, from: u8, rules: &Rules) -> bool {
        if self.slot.active != 0 {
            process.stop(Why::SlotInUse);
        } else if !rules.may_stream(from, Some(&self.slot.seen())) {
            process.stop(Why::HistoryLost);
        } else {
            self.slot.active = process.id;
            // The server moves a start below the confirmed position up to it.
            process.from = from.max(self.slot.confirmed);
            (process.received, process.open) = (process.from, 0);
        }
        process.alive()
    }

    fn list(&self) -> u64 {
        let files = self.files.iter().enumerate().filter(|(_, file)| file.is_some());
        files.fold(0, |listed, (file, _)| listed | 1 << file)
    }

    /// What was listed before the ledger was seen to be still its own, and what no record names:
    /// whoever stored it can't record it any more. What a newer process stores is not in the list.
    fn remove_orphans(&mut self, process: &mut Process, rules: &Rules) {
        let listed = match rules.is(Wrong::LookThenList) {
            true => self.list(),
            false => process.listed,
        };
        let recorded = process.ledger.steps().fold(0, |all: u64, step| all | 1 << step.file);
        for (file, place) in self.files.iter_mut().enumerate() {
            if listed & !recorded & 1 << file != 0 && !rules.is(Wrong::UseOrphans) {
                *place = None;
            }
        }
        process.listed = 0;
        process.at = At::Connect;
    }

    /// Begins to spool, or goes on where the recorded steps end.
    fn connect(&mut self, process: &mut Process, rules: &Rules) {
        if self.take_slot(process, process.ledger.spool_end(), rules) {
            process.at = At::Spool;
        }
    }

    /// The ledger must still be as the process left it.
    fn confirm(&self, process: &mut Process, next: At) {
        match still_ours(process.ledger.version.into(), self.ledger.version.into()) {
            Ok(()) => process.at = next,
            Err(_) => process.stop(Why::Fenced),
        }
    }

    fn next_sent(&self, process: &Process) -> Option<(usize, u8)> {
        self.log.between(process.received, u8::MAX).next()
    }

    fn receive(&self, process: &mut Process) -> Option<()> {
        let (transaction, commit) = self.next_sent(process)?;
        process.open += 1;
        if process.open == messages_of(transaction) {
            (process.received, process.open) = (commit + 1, 0);
        }
        Some(())
    }

    /// The file of a step: what was received since the last one.
    fn pending(&self, process: &Process) -> Messages {
        let mut pending = self.log.truth(process.ledger.spool_end(), process.received);
        if let Some((next, _)) = self.next_sent(process) {
            pending[next] += process.open;
        }
        pending
    }

    fn free_file(&self, process: &Process, rules: &Rules) -> Option<u8> {
        let number = process.ledger.steps().count();
        match rules.is(Wrong::SameNames) {
            true => Some(number as u8),
            false => Some(self.named).filter(|file| usize::from(*file) < FILES),
        }
    }

    fn store(&mut self, process: &mut Process, rules: &Rules) -> Option<()> {
        process.file = self.free_file(process, rules)?;
        self.named = self.named.max(process.file + 1);
        process.stored = process.received;
        if !rules.is(Wrong::RecordBeforeFile) {
            self.files[usize::from(process.file)] = Some(self.pending(process));
        }
        process.at = At::Record;
        Some(())
    }

    fn record(&mut self, process: &mut Process, rules: &Rules) -> Option<()> {
        let step =
            Step { from: process.ledger.spool_end(), to: process.stored, file: process.file };
        let number = match rules.is(Wrong::RecordWithoutCas) {
            true => self.ledger.steps().count(),
            false => process.ledger.steps().count(),
        };
        let done = self.put(process, rules.is(Wrong::RecordWithoutCas), |ledger| {
            if let Some(place) = ledger.steps.get_mut(number) {
                *place = Some(step);
            }
        });
        if done {
            let late = rules.is(Wrong::RecordBeforeFile);
            process.at = if late { At::File } else { At::Spool };
        }
        Some(())
    }

    /// Loads the table, takes the slot where the spool ends.
    fn attach(&mut self, process: &mut Process, rules: &Rules) {
        let ledger = process.ledger;
        let spool = ledger.spooled();
        let from = rules.needed_from_slot(ledger.fence, spool);
        if !self.take_slot(process, from, rules) {
            return;
        }
        process.table = self.table;
        let counts = rules.counts(ledger.fence, spool);
        if counts && ledger.steps().any(|step| self.files[usize::from(step.file)].is_none()) {
            self.broken = true;
        }
        if rules.is(Wrong::EndIsApplied) && counts {
            process.table.applied = process.table.applied.max(ledger.spool_end());
        }
        process.at = At::Confirm;
    }

    /// What the drain gets of the transactions before `to` that the table does not have.
    fn drained(&self, process: &Process, to: u8, rules: &Rules) -> Messages {
        let (ledger, applied) = (&process.ledger, process.table.applied.max(process.ledger.fence));
        let mut got = Messages::default();
        if rules.counts(ledger.fence, ledger.spooled()) {
            let recorded = ledger.steps().map(|step| step.file);
            let files: Vec<u8> = match rules.is(Wrong::UseOrphans) {
                true => (0..FILES as u8).collect(),
                false => recorded.collect(),
            };
            let file = |file: &u8| self.files[usize::from(*file)];
            for content in files.iter().filter_map(file) {
                for (i, _) in self.log.between(applied, to) {
                    got[i] += content[i];
                }
            }
        }
        for (i, _) in self.log.between(process.from.max(applied), to) {
            got[i] += messages_of(i);
        }
        got
    }

    fn batch(&mut self, process: &mut Process, all: bool, rules: &Rules) -> Option<()> {
        let to = match self.log.between(process.table.applied, u8::MAX).next() {
            Some((_, commit)) if !all => commit + 1,
            _ => self.log.end,
        };
        process.at = At::Fence;
        process.received = process.received.max(to);
        if to == process.table.applied {
            // The table has it all, from before a crash: the fence is missing.
            return Some(());
        }
        let got = self.drained(process, to, rules);
        if process.table.version != self.table.version {
            process.stop(Why::Fenced);
            return Some(());
        }
        let table = &mut process.table;
        for (row, more) in table.rows.iter_mut().zip(got) {
            *row += more;
        }
        (table.version, table.applied) = (table.version + 1, to);
        self.table = *table;
        Some(())
    }

    fn tidy(&mut self, process: &mut Process) {
        let done = self.put(process, false, |ledger| ledger.steps = Default::default());
        if done {
            self.files = [None; FILES];
        }
    }

    fn process_actions(&self, i: usize, p: &Process, model: &Spool, to: &mut Vec<Action>) {
        let (rules, connected) = (&model.rules, self.holds_slot(p));
        match p.at {
            At::Claim => to.push(Action::Claim(i)),
            At::List => to.push(Action::List(i)),
            At::Look => to.push(Action::Look(i)),
            At::Remove => to.push(Action::Remove(i)),
            At::Connect => to.push(Action::Connect(i)),
            At::Attach => to.push(Action::Attach(i)),
            At::Confirm => to.push(Action::Confirm(i)),
            At::Record => to.push(Action::Record(i)),
            At::File => to.push(Action::StoreLate(i)),
            At::Fence => to.push(Action::Fence(i)),
            At::Spool => {
                if connected && self.next_sent(p).is_some() {
                    to.push(Action::Receive(i));
                } else if connected && p.received < self.log.end {
                    to.push(Action::Keepalive(i));
                }
                let whole = p.open == 0 || rules.is(Wrong::PartialTail);
                let steps = p.ledger.steps().count() < p.ledger.steps.len();
                let new = p.received > p.ledger.spool_end();
                if new && whole && steps && self.free_file(p, rules).is_some() {
                    to.push(Action::Store(i));
                }
                to.push(Action::Publish(i));
            }
            At::Follow => {
                if self.log.end > p.ledger.fence && connected {
                    to.push(Action::Batch(i, true));
                    if self.log.end > p.table.applied {
                        to.push(Action::Batch(i, false));
                    }
                }
            }
            At::Stopped(_) => {}
        }
        if matches!(p.at, At::Spool | At::Follow) && !connected {
            to.push(Action::Notice(i));
        }
        let spool = p.ledger.spooled().filter(|_| matches!(p.at, At::Follow | At::Fence));
        if spool.is_some_and(|s| rules.is_drained(p.ledger.fence, p.table.applied, s)) {
            to.push(Action::Tidy(i));
        }
        if self.acknowledgeable(p, rules).is_some() {
            to.push(Action::Acknowledge(i));
        }
        if self.started < model.starts {
            to.push(Action::Crash(i));
            if model.zombies && connected {
                to.push(Action::Cut(i));
            }
        }
    }

    fn act(&mut self, mut p: Process, action: Action, rules: &Rules) -> Option<Process> {
        match action {
            Action::Notice(_) => p.stop(Why::Disconnected),
            Action::Claim(_) => {
                let id = p.id;
                if self.put(&mut p, false, |ledger| ledger.writer = id) {
                    p.at = if p.ledger.streaming { At::Attach } else { At::List };
                }
            }
            Action::List(_) => (p.listed, p.at) = (self.list(), At::Look),
            Action::Look(_) => self.confirm(&mut p, At::Remove),
            Action::Remove(_) => self.remove_orphans(&mut p, rules),
            Action::Connect(_) => self.connect(&mut p, rules),
            Action::Receive(_) => self.receive(&mut p)?,
            Action::Keepalive(_) => p.received = self.log.end,
            Action::Store(_) => self.store(&mut p, rules)?,
            Action::Record(_) => self.record(&mut p, rules)?,
            Action::StoreLate(_) => {
                let step = p.ledger.steps().last()?;
                let content = self.log.truth(step.from, step.to);
                self.files[usize::from(step.file)] = Some(content);
                p.at = At::Spool;
            }
            Action::Acknowledge(_) => self.slot.confirmed = self.acknowledgeable(&p, rules)?,
            Action::Publish(_) => {
                self.release(p.id);
                let publish = |ledger: &mut Ledger| {
                    (ledger.streaming, ledger.fence) = (true, ledger.base);
                };
                if self.put(&mut p, false, publish) {
                    let applied = p.ledger.base;
                    self.table = Table { version: 1, applied, rows: Messages::default() };
                    p.at = At::Attach;
                }
            }
            Action::Attach(_) => self.attach(&mut p, rules),
            Action::Confirm(_) => self.confirm(&mut p, At::Follow),
            Action::Batch(_, all) => self.batch(&mut p, all, rules)?,
            Action::Fence(_) => {
                let applied = p.table.applied;
                if self.put(&mut p, false, |ledger| ledger.fence = applied) {
                    p.at = At::Follow;
                }
            }
            Action::Tidy(_) => self.tidy(&mut p),
            _ => return None,
        }
        Some(p)
    }
}

impl Model for Spool {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let log = Log::new();
        // The boundary is made: slot and snapshot.
        let ledger = Ledger { base: log.end, ..Ledger::default() };
        let slot = Slot { confirmed: log.end, active: 0 };
        vec![State {
            log,
            slot,
            files: [None; FILES],
            named: 0,
            ledger,
            table: Table::default(),
            processes: [None; 2],
            started: 0,
            meddled: 0,
            broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.log.committed < self.transactions {
            actions.push(Action::Commit);
        }
        let living = state.living().count();
        let budget = state.started < self.starts && (living == 0 || self.zombies && living == 1);
        if budget || living == 0 && state.is_to_be_restarted() {
            actions.push(Action::Start);
        }
        let idle = state.slot.active == 0 && state.slot.confirmed < state.log.end;
        if idle && state.meddled < self.meddling {
            actions.push(Action::Meddle);
        }
        for (i, process) in state.processes.iter().enumerate() {
            if let Some(process) = process.as_ref().filter(|p| p.alive()) {
                state.process_actions(i, process, self, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Commit => state.log.commit(),
            Action::Meddle => {
                state.slot.confirmed = last.log.end;
                state.meddled += 1;
            }
            Action::Start => state.start(&self.rules),
            Action::Crash(i) => {
                state.release(last.processes[i]?.id);
                state.processes[i] = None;
            }
            Action::Cut(i) => state.release(last.processes[i]?.id),
            Action::Notice(i)
            | Action::Claim(i)
            | Action::List(i)
            | Action::Look(i)
            | Action::Remove(i)
            | Action::Connect(i)
            | Action::Receive(i)
            | Action::Keepalive(i)
            | Action::Store(i)
            | Action::Record(i)
            | Action::StoreLate(i)
            | Action::Acknowledge(i)
            | Action::Publish(i)
            | Action::Attach(i)
            | Action::Confirm(i)
            | Action::Batch(i, _)
            | Action::Fence(i)
            | Action::Tidy(i) => {
                let process = state.act(last.processes[i]?, action, &self.rules)?;
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
        state.ledger.version < 200 && state.started < 40
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promise::properties(self)
    }
}
