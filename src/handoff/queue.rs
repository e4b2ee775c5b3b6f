//! Gives out the work of one boundary, and stops giving it out once the boundary is old.
//!
//! A snapshot keeps the source from clearing dead rows away, so it is held for a set time only.
//! What has begun and can't be split over two boundaries is then given out to its end; the rest
//! waits for the next one. Every boundary gets something done, however short the time is.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::handoff::plan::Chunk;

/// Work for one worker.
#[derive(Clone, Debug)]
pub enum Task {
    /// Copy a chunk.
    Copy(Chunk),
    /// Count a leaf in the same snapshot: table, schema and name.
    Count(usize, (String, String)),
}

/// A group of tasks that all belong to one boundary, once the first of them was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// All chunks of a table that can't be joined.
    Chunks(usize),
    /// The counts of all leaves of a table.
    Counts(usize),
}

/// The tasks of a boundary, in order.
pub struct Queue {
    state: Mutex<State>,
    until: Option<Instant>,
    workers: usize,
}

struct State {
    tasks: VecDeque<(Task, Option<Group>)>,
    begun: HashSet<Group>,
    given: usize,
}

impl Queue {
    /// A queue for `workers` that gives out nothing new after `until`.
    pub fn new(tasks: Vec<(Task, Option<Group>)>, until: Option<Instant>, workers: usize) -> Queue {
        let state = State { tasks: tasks.into(), begun: HashSet::new(), given: 0 };
        Queue { state: Mutex::new(state), until, workers }
    }

    /// The next task; none when there is none, or none that may still be begun.
    pub fn take(&self) -> Option<Task> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.until.is_some_and(|until| Instant::now() >= until);
        let at = if old && state.given >= self.workers {
            let begun = |group: &Option<Group>| group.is_some_and(|g| state.begun.contains(&g));
            state.tasks.iter().position(|(_, group)| begun(group))?
        } else {
            0
        };
        let (task, group) = state.tasks.remove(at)?;
        state.given += 1;
        state.begun.extend(group);
        Some(task)
    }

    /// Whether tasks are left.
    pub fn has_tasks(&self) -> bool {
        !self.state.lock().unwrap_or_else(PoisonError::into_inner).tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(table: usize, leaf: &str) -> (Task, Option<Group>) {
        let leaf = ("s".to_owned(), leaf.to_owned());
        (Task::Count(table, leaf), Some(Group::Counts(table)))
    }

    fn leaf(task: Option<Task>) -> Option<String> {
        match task? {
            Task::Count(_, (_, name)) => Some(name),
            Task::Copy(_) => None,
        }
    }

    #[test]
    fn an_old_boundary_ends_what_it_began_and_begins_nothing() {
        let tasks = || vec![count(0, "a"), count(1, "b"), count(0, "c"), count(2, "d")];
        let queue = Queue::new(tasks(), Some(Instant::now()), 1);
        assert_eq!(leaf(queue.take()).as_deref(), Some("a"));
        assert_eq!(leaf(queue.take()).as_deref(), Some("c"));
        assert!(queue.take().is_none() && queue.has_tasks());
        let queue = Queue::new(tasks(), None, 1);
        let all: Vec<_> = std::iter::from_fn(|| leaf(queue.take())).collect();
        assert_eq!(all, ["a", "b", "c", "d"]);
        assert!(!queue.has_tasks());
    }
}
