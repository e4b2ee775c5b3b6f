//! What can go wrong, and what the user does next.
//!
//! Every error says what happened, to which table, chunk, key or version, and ends with the next
//! step. The [`Kind`] decides the exit code and whether trying again can help: a transient error
//! is retried with back-off by whoever owns the connection or store, a definite one stops.

use std::error::Error as StdError;
use std::fmt;

/// What sort of trouble it is. Each kind but [`Kind::Transient`] has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May pass by itself: a connection cut, a store that throttles. Exit code 1 once retries end.
    Transient,
    /// Went wrong and will go wrong again. Exit code 1.
    Failed,
    /// A change or value of the source does not fit the table it belongs to: this one table is in
    /// doubt, nothing else. Exit code 1.
    Unfit,
    /// The command line or the configuration is wrong. Exit code 2.
    Config,
    /// The source or the lake is not ready. Exit code 3.
    Check,
    /// Another writer took over the pipeline. Exit code 4.
    Fenced,
    /// Continuity to the source can't be proven; a new generation is needed. Exit code 5.
    HistoryLost,
    /// `verify` found differences. Exit code 6.
    Different,
}

impl Kind {
    /// The exit code of the program.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Transient | Kind::Failed | Kind::Unfit => 1,
            Kind::Config => 2,
            Kind::Check => 3,
            Kind::Fenced => 4,
            Kind::HistoryLost => 5,
            Kind::Different => 6,
        }
    }
}

/// An error with its kind, what happened, what to do next, and its cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    next: Option<String>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result of nearly everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what happened and to what.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), next: None, cause: None }))
    }

    /// A definite failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Error::new(Kind::Failed, message)
    }

    /// A change or value that does not fit its table.
    pub fn unfit(message: impl Into<String>) -> Self {
        Error::new(Kind::Unfit, message)
    }

    /// A failure that may pass by itself.
    pub fn transient(message: impl Into<String>) -> Self {
        Error::new(Kind::Transient, message)
    }

    /// A mistake in the command line or configuration.
    pub fn config(message: impl Into<String>) -> Self {
        Error::new(Kind::Config, message)
    }

    /// Adds what the user does next, as a sentence without a final full stop.
    pub fn next(mut self, step: impl Into<String>) -> Self {
        self.0.next = Some(step.into());
        self
    }

    /// Adds the cause.
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Says where it happened: `subject: message`.
    pub fn at(mut self, subject: impl fmt::Display) -> Self {
        self.0.message = format!("{subject}: {}", self.0.message);
        self
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Whether trying the same again can help.
    pub fn is_transient(&self) -> bool {
        self.0.kind == Kind::Transient
    }

    /// The cause, for code that must know which one it was.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// What the user does next, where it is known.
    pub fn next_step(&self) -> Option<&str> {
        self.0.next.as_deref()
    }

    /// What happened, with the causes and without the next step.
    pub fn what(&self) -> String {
        // Many errors have their cause's text in their own; each is said once.
        let mut said = self.0.message.clone();
        let mut cause: Option<&dyn StdError> = self.0.cause.as_deref().map(|c| c as &dyn StdError);
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                said.push_str(": ");
                said.push_str(&text);
            }
            cause = error.source();
        }
        said
    }

    /// All of it in one line.
    pub fn in_a_line(&self) -> String {
        self.to_string().replace("\n  ", "; ").replace('\n', " ")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        if let Some(next) = &self.0.next {
            write!(f, "\n  next: {next}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_place_cause_and_next_step() {
        let error = Error::failed("the key is not unique")
            .at("public.orders chunk 3")
            .because(std::io::Error::other("id 7 stands twice"))
            .next("REINDEX the table and run again");
        assert_eq!(
            error.to_string(),
            "public.orders chunk 3: the key is not unique: id 7 stands twice\n  next: REINDEX the table and run again"
        );
        assert_eq!(error.kind().exit_code(), 1);
    }
}
