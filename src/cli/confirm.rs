//! Asking before something that can't be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::error::{Error, Result};

/// Asks `question` on the terminal; only `y` and `yes` agree. `yes` answers without asking.
///
/// # Errors
/// [`crate::error::Kind::Config`]: there is nobody to ask and `--yes` was not given.
pub fn confirm(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::config(format!("{question} There is no terminal to ask on"))
            .next("give --yes if you mean it"));
    }
    let mut answer = String::new();
    let mut stderr = io::stderr();
    let asked = write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush());
    asked.and_then(|()| io::stdin().lock().read_line(&mut answer)).map_err(|error| {
        Error::failed("the answer can't be read").because(error).next("give --yes if you mean it")
    })?;
    Ok(agrees(&answer))
}

fn agrees(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, agreed) in [
            ("y\n", true),
            ("YES\n", true),
            ("", false),
            ("\n", false),
            ("yep", false),
            ("n", false),
        ] {
            assert_eq!(agrees(answer), agreed, "{answer:?}");
        }
    }
}
