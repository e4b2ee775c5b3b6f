//! The model of a resumed snapshot: every state, and every move that anybody can make in it.

use stateright::{Model, Property};
use tidegate::handoff::rules::{CopiedSoFar, PLUGIN, Slot};

use crate::resume::drain::{Chunk, Drained, Rows, Run, drain, drain_end};
use crate::resume::promise;
use crate::resume::rules::{Rules, Wrong, lsn};
use crate::resume::source::{Heap, Op, Rewrite, Source, move_all};

/// The size of the world.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub rules: Rules,
    pub keyed: bool,
    pub ranges: u8,
    pub keys: u8,
    /// Rows at the beginning, one a range.
    pub rows: u8,
    /// Changes the source makes, each of any kind below, to any key, into any range.
    pub changes: u8,
    pub rekeys: bool,
    pub truncates: u8,
    pub rewrites: u8,
    /// Times the process crashes.
    pub crashes: u8,
    /// New boundaries in mid-copy.
    pub boundaries: u8,
    /// Another table has chunks too, so this one is drained to their bases.
    pub another_table: bool,
    /// Rows change only where it makes a difference: right before a boundary is made. A boundary's
    /// image does not change any more, so a change in mid-copy is as good as one after it.
    pub late_changes: bool,
    /// Also look for examples of the situations the model is about.
    pub examples: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub source: Source,
    /// The confirmed position of the run's slot.
    pub slot: Option<u8>,
    pub run: Run,
    pub process: Option<Process>,
    pub crashes: u8,
    pub boundaries: u8,
    pub published: Option<Published>,
    /// A count in the last boundary's snapshot was not what had been drained.
    pub miscounted: bool,
    /// A key was read again, and is as unresolved as before.
    pub in_vain: bool,
    /// A start found that the slot no longer has what the run needs.
    pub lost: bool,
    /// Chunks were dropped.
    pub started_again: bool,
}

/// The table, once it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Published {
    pub at: u8,
    pub rows: Rows,
}

/// The one process that lives. All of it is lost in a crash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    pub step: Step,
    pub boundary: Option<Boundary>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// It has seen the table's file, and makes a boundary.
    Boundary {
        file: u8,
    },
    /// The boundary is made; now the table is looked at again.
    Look {
        file: u8,
    },
    /// Chunk by chunk, each under a lock of its own.
    Copy,
    Drain,
    /// Keys lack values that are nowhere: they need a boundary of their own.
    Unresolved {
        keys: u32,
    },
    /// It is made; `file` was the table's before.
    Reread {
        keys: u32,
        file: u8,
    },
}

/// A snapshot and its position, made in one act.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Boundary {
    pub base: u8,
    pub image: Heap,
    /// The file as the snapshot shows `pg_class`.
    pub file: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Change(Op),
    Commit,
    Start,
    Crash,
    Boundary,
    Look,
    Copy(u8),
    /// A chunk of another table is recorded.
    CopyAnother,
    /// The boundary is old enough, or another table needs one.
    NewBoundary,
    Drain,
    RereadBoundary,
    Reread,
    /// Only in a wrong way.
    Acknowledge,
}

impl Resumed {
    fn source_actions(&self, state: &State, to: &mut Vec<Action>) {
        let source = &state.source;
        if source.is_open() {
            to.push(Action::Commit);
        }
        if source.made == self.changes || !source.has_room() {
            return;
        }
        let ranges = || 0..self.ranges;
        let mut op = |op: Op| to.push(Action::Change(op));
        if source.truncates < self.truncates {
            op(Op::Truncate);
        }
        let step = state.process.map(|process| process.step);
        let late = matches!(step, Some(Step::Boundary { .. } | Step::Unresolved { .. }));
        if self.late_changes && !late && !source.is_open() {
            return;
        }
        // A key that was never used is as good as another.
        for key in 0..self.keys.min(source.used + 1) {
            if source.heap[usize::from(key)].is_none() {
                ranges().for_each(|range| op(Op::Insert { key, range }));
                continue;
            }
            for range in ranges() {
                op(Op::Update { from: key, key, sent: false, range });
                op(Op::Update { from: key, key, sent: true, range });
            }
            op(Op::Delete { key });
            let free = |to: &u8| source.heap[usize::from(*to)].is_none();
            for to in (0..self.keys.min(source.used + 1)).filter(|to| self.rekeys && free(to)) {
                ranges()
                    .for_each(|range| op(Op::Update { from: key, key: to, sent: false, range }));
            }
        }
    }

    /// A rewrite waits for a chunk's lock, but not for the next chunk's.
    fn rewrites(&self, state: &State, to: &mut Vec<Action>) {
        if state.source.rewrites == self.rewrites {
            return;
        }
        for front in [true, false] {
            for kind in [Rewrite::Vacuum, Rewrite::Alter] {
                to.push(Action::Change(Op::Rewrite { front, kind }));
            }
        }
    }

    fn process_actions(&self, state: &State, process: &Process, to: &mut Vec<Action>) {
        let run = &state.run;
        let more = state.boundaries < self.boundaries;
        match process.step {
            Step::Boundary { .. } => to.push(Action::Boundary),
            Step::Look { .. } => to.push(Action::Look),
            Step::Copy => {
                let left = (0..self.ranges).filter(|r| run.chunks[usize::from(*r)].is_none());
                to.extend(left.map(Action::Copy));
                let base = process.boundary.map_or(0, |b| b.base);
                if self.another_table && run.high < base {
                    to.push(Action::CopyAnother);
                }
                if more {
                    to.push(Action::NewBoundary);
                }
                if run.is_complete(self.ranges) {
                    to.push(Action::Drain);
                }
            }
            Step::Drain => {
                to.push(Action::Drain);
                if more && self.another_table {
                    to.push(Action::NewBoundary);
                }
            }
            Step::Unresolved { .. } => to.push(Action::RereadBoundary),
            Step::Reread { .. } => to.push(Action::Reread),
        }
        if state.acknowledgeable(&self.rules).is_some() {
            to.push(Action::Acknowledge);
        }
        if state.crashes < self.crashes {
            to.push(Action::Crash);
        }
    }
}

impl State {
    fn seen_slot(&self) -> Option<Slot<'static>> {
        self.slot.map(|confirmed| Slot {
            database: "shop",
            plugin: PLUGIN,
            active: false,
            confirmed: lsn(confirmed),
            lost: false,
        })
    }

    fn acknowledgeable(&self, rules: &Rules) -> Option<u8> {
        let (first, confirmed) = (self.run.first?, self.slot?);
        let ack = rules.may_acknowledge(first, self.source.end, confirmed);
        (ack > lsn(confirmed)).then_some(self.source.end)
    }

    /// What the last run left is continued, or dropped.
    fn start(&mut self, model: &Resumed) {
        let slot = self.seen_slot();
        if let Some(first) = self.run.first
            && !model.rules.may_go_on(first, slot.as_ref())
        {
            self.lost = true;
            self.run = Run::default();
        }
        if self.run.first.is_none() {
            self.slot = None;
        }
        let step = match self.run.is_complete(model.ranges) {
            true => Step::Drain,
            false => Step::Boundary { file: self.source.file },
        };
        self.process = Some(Process { step, boundary: None });
    }

    fn make_boundary(&mut self, mut process: Process) -> Option<Process> {
        let Step::Boundary { file } = process.step else { return None };
        let base = self.source.end;
        if self.run.first.is_none() {
            self.slot = Some(base);
        }
        process.boundary = Some(Boundary { base, image: self.source.heap, file: self.source.file });
        process.step = Step::Look { file };
        Some(process)
    }

    /// The table's file as the process sees it now.
    fn file_now(&self, boundary: &Boundary, rules: &Rules) -> u8 {
        if rules.is(Wrong::FileInSnapshot) { boundary.file } else { self.source.file }
    }

    fn keep_chunks(&mut self, file: u8, model: &Resumed) -> bool {
        let found = CopiedSoFar {
            complete: self.run.is_complete(model.ranges),
            one_base: self.run.is_of_one_base(),
            keyed: model.keyed,
            same_schema: true,
            same_leaves: true,
            same_files: self.run.file == file,
        };
        if self.run.chunks.iter().all(Option::is_none) {
            return found.same_files;
        }
        let kept = model.rules.keep_chunks(found).is_ok();
        if !kept {
            self.run.forget();
            self.started_again = true;
        }
        kept
    }

    /// Looks at the table after the boundary; what is recorded is kept if it is still the same.
    fn look(&mut self, mut process: Process, model: &Resumed) -> Option<Process> {
        let Step::Look { file: before } = process.step else { return None };
        let boundary = process.boundary?;
        let now = self.file_now(&boundary, &model.rules);
        if now != before && !model.rules.is(Wrong::LookOnlyAfter) {
            // The snapshot may be older than the file, and show it empty.
            process.step = Step::Boundary { file: now };
            return Some(process);
        }
        self.run.first.get_or_insert(boundary.base);
        self.keep_chunks(now, model);
        self.run.file = now;
        process.step = Step::Copy;
        Some(process)
    }

    /// Locks the table, looks at its file once more, copies a range of it.
    fn copy(&mut self, mut process: Process, range: u8, model: &Resumed) -> Option<Process> {
        let boundary = process.boundary?;
        let now = self.file_now(&boundary, &model.rules);
        let moved = now != self.run.file && !model.rules.is(Wrong::LookOnce);
        if moved && !self.keep_chunks(now, model) {
            process.step = Step::Boundary { file: now };
            return Some(process);
        }
        let rows = boundary
            .image
            .map(|cell| cell.filter(|cell| cell.range == range).map(|cell| cell.values));
        self.run.chunks[usize::from(range)] = Some(Chunk { base: boundary.base, rows });
        Some(process)
    }

    fn drain(&mut self, mut process: Process, model: &Resumed) -> Process {
        let drained = drain(&self.run, &self.source, model.keyed, &model.rules);
        let Drained { rows, unresolved } = drained;
        let at = drain_end(&self.run, &model.rules);
        let counted = Rows::truth(&self.source, at, model.keyed).count();
        self.miscounted |= drained.count() != counted;
        self.in_vain |= unresolved & self.run.just_read != 0;
        if unresolved == 0 {
            self.published = Some(Published { at, rows });
        }
        process.step = Step::Unresolved { keys: unresolved };
        process
    }

    /// A boundary for the unresolved keys alone.
    fn reread_boundary(&self, mut process: Process, rules: &Rules) -> Option<Process> {
        let Step::Unresolved { keys } = process.step else { return None };
        let Source { heap, file, end, .. } = self.source;
        let old = process.boundary.filter(|_| rules.is(Wrong::RereadOld));
        let image = old.map_or(heap, |boundary| boundary.image);
        process.boundary = Some(Boundary { base: end, image, file });
        process.step = Step::Reread { keys, file };
        Some(process)
    }

    /// Locks the table, looks at its file, reads the keys.
    fn reread(&mut self, mut process: Process, rules: &Rules) -> Option<Process> {
        let Step::Reread { keys, file } = process.step else { return None };
        let boundary = process.boundary?;
        if file != self.file_now(&boundary, rules) && !rules.is(Wrong::RereadUnlooked) {
            process.step = Step::Unresolved { keys };
            return Some(process);
        }
        let (base, image) = match rules.is(Wrong::RereadNow) {
            true => (self.run.end(), self.source.heap),
            false => (boundary.base, boundary.image),
        };
        for (key, cell) in image.iter().enumerate() {
            if let Some(cell) = cell.filter(|_| keys & 1 << key != 0) {
                self.run.reread[key] = Some((base, cell.values));
            }
        }
        self.run.high = self.run.high.max(base);
        self.run.just_read = keys;
        self.run.rereads = self.run.rereads.saturating_add(1).min(3);
        process.step = Step::Drain;
        Some(process)
    }
}

impl Model for Resumed {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            source: Source::new(self.rows, self.ranges),
            slot: None,
            run: Run::default(),
            process: None,
            crashes: 0,
            boundaries: 0,
            published: None,
            miscounted: false,
            in_vain: false,
            lost: false,
            started_again: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.published.is_some() {
            return;
        }
        self.source_actions(state, actions);
        // A transaction is one moment to everybody else.
        if state.source.is_open() {
            return;
        }
        self.rewrites(state, actions);
        match &state.process {
            None => actions.push(Action::Start),
            Some(process) => self.process_actions(state, process, actions),
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Change(op) => {
                state.source.change(op, self.ranges);
                if let Op::Rewrite { front, kind } = op {
                    state.rewritten(front, kind, self.ranges);
                }
                if let Op::Truncate = op {
                    state.emptied();
                }
            }
            Action::Commit => state.source.commit(),
            Action::Start => state.start(self),
            Action::Crash => {
                state.process = None;
                state.crashes += 1;
            }
            Action::Boundary => state.process = Some(state.make_boundary(last.process?)?),
            Action::Look => state.process = Some(state.look(last.process?, self)?),
            Action::Copy(range) => state.process = Some(state.copy(last.process?, range, self)?),
            Action::CopyAnother => {
                state.run.high = last.process?.boundary?.base;
                state.run.just_read = 0;
            }
            Action::NewBoundary => {
                let step = Step::Boundary { file: last.source.file };
                state.process.as_mut()?.step = step;
                state.boundaries += 1;
            }
            Action::Drain => state.process = Some(state.drain(last.process?, self)),
            Action::RereadBoundary => {
                state.process = Some(state.reread_boundary(last.process?, &self.rules)?);
            }
            Action::Reread => state.process = Some(state.reread(last.process?, &self.rules)?),
            Action::Acknowledge => state.slot = Some(last.acknowledgeable(&self.rules)?),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promise::properties(self)
    }
}

/// What an older snapshot shows of a table that is rewritten or emptied, as soon as it is asked.
impl State {
    fn rewritten(&mut self, front: bool, kind: Rewrite, ranges: u8) {
        match (kind, self.process.as_mut().and_then(|p| p.boundary.as_mut())) {
            (Rewrite::Vacuum, Some(boundary)) => move_all(&mut boundary.image, front, ranges),
            (Rewrite::Alter, _) => self.emptied(),
            _ => {}
        }
    }

    fn emptied(&mut self) {
        if let Some(boundary) = self.process.as_mut().and_then(|p| p.boundary.as_mut()) {
            boundary.image = Default::default();
        }
    }
}
