//! The program, run as a user runs it: arguments, environment, output, exit code, signals.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::pause::Pause;

/// A run of the program, not started yet.
pub struct Tidegate {
    command: Command,
    failpoints: Vec<String>,
    wrong: Vec<String>,
}

impl Tidegate {
    /// The program with these arguments, and an environment without our own settings.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Tidegate {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("TIDEGATE_") || name.starts_with("PG") {
                command.env_remove(&*name);
            }
        }
        Tidegate { command, failpoints: Vec::new(), wrong: Vec::new() }
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Tidegate {
        self.command.arg(argument);
        self
    }

    /// A variable of the environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Tidegate {
        self.command.env(name, value);
        self
    }

    /// The folder it runs in.
    pub fn current_dir(mut self, folder: &std::path::Path) -> Tidegate {
        self.command.current_dir(folder);
        self
    }

    /// `action` at the point `name`: `crash`, `error`, `2*crash`, `delay:100`.
    pub fn failpoint(mut self, name: &str, action: &str) -> Tidegate {
        self.failpoints.push(format!("{name}={action}"));
        self
    }

    /// Stands still at this pause's point.
    pub fn pause(mut self, pause: &Pause) -> Tidegate {
        self.failpoints.push(pause.entry());
        self
    }

    /// Does a thing the wrong way, to prove that tests notice.
    pub fn wrong(mut self, rule: &str) -> Tidegate {
        self.wrong.push(rule.to_owned());
        self
    }

    /// Starts it and returns at once.
    pub fn start(mut self) -> Running {
        if !self.failpoints.is_empty() {
            self.command.env("TIDEGATE_FAILPOINTS", self.failpoints.join(";"));
        }
        if !self.wrong.is_empty() {
            self.command.env("TIDEGATE_WRONG", self.wrong.join(","));
        }
        let shown = format!("{:?}", self.command);
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("can't start {shown}: {e}"));
        let stdout = Capture::of(child.stdout.take());
        let stderr = Capture::of(child.stderr.take());
        Running { child, shown, stdout, stderr, status: None }
    }

    /// Runs it to its end, which must come within [`PATIENCE`].
    pub fn finish(self) -> Finished {
        self.start().finish()
    }

    /// Runs it to its end, which must be a success.
    pub fn succeed(self) -> Finished {
        self.finish().expect_code(0)
    }
}

/// The program while it runs; killed when dropped.
pub struct Running {
    child: Child,
    shown: String,
    stdout: Capture,
    stderr: Capture,
    status: Option<ExitStatus>,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap_or_else(|e| panic!("wait: {e}"));
        }
        self.status.is_some()
    }

    /// What it wrote so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it reported so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Both, for messages.
    pub fn output(&self) -> String {
        format!("{}\n-- stdout\n{}\n-- stderr\n{}", self.shown, self.stdout(), self.stderr())
    }

    /// Sends a signal by name: `INT`, `TERM`, `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("/bin/sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &self.pid().to_string()])
            .status();
        assert!(sent.is_ok_and(|s| s.success()), "SIG{name} could not be sent to {}", self.shown);
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill9(mut self) -> Finished {
        let _ = self.child.kill();
        self.finish()
    }

    /// Waits for its end, which must come within [`PATIENCE`].
    pub fn finish(self) -> Finished {
        self.finish_within(PATIENCE)
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It did not end within `limit`; the message has its output, and it is killed.
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() > deadline {
                panic!("did not end within {limit:?}: {}", self.output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stdout.join();
        self.stderr.join();
        let status = self.status.unwrap_or_default();
        Finished {
            shown: self.shown.clone(),
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    shown: String,
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// # Panics
    /// It ended in another way than with this exit code.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Finished {
        assert_eq!(
            self.code,
            Some(code),
            "{} ended with signal {:?}\n-- stdout\n{}\n-- stderr\n{}",
            self.shown,
            self.signal,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The exit code; -1 if a signal ended it.
    pub fn code(&self) -> i32 {
        self.code.unwrap_or(-1)
    }

    /// Everything it printed.
    pub fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// # Panics
    /// It ended by itself: the crash it was told to have did not come.
    #[track_caller]
    pub fn expect_signal(self) -> Finished {
        assert!(
            self.signal.is_some(),
            "{} ended with code {:?}\n{}",
            self.shown,
            self.code,
            self.output()
        );
        self
    }

    /// Its output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("no JSON ({e}) from {}:\n{}", self.shown, self.stdout))
    }
}

/// Reads a pipe to its end in the background, so that the program never waits for us.
struct Capture {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Capture {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = text.clone();
        let reader = pipe.map(|pipe| {
            std::thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                loop {
                    let taken = match pipe.fill_buf() {
                        Ok([]) | Err(_) => return,
                        Ok(bytes) => {
                            into.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
                            bytes.len()
                        }
                    };
                    pipe.consume(taken);
                }
            })
        });
        Capture { text, reader }
    }

    fn text(&self) -> String {
        let bytes = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
