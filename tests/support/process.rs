//! One `rationd` process: its own directory, config, socket and admin port, dead when dropped.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::metrics::{self, Metrics};
use super::poll::wait_for;
use super::resp::Connection;
use super::server::Place;

/// Longest wait for a daemon to be ready, on a machine with much else to do.
const READY_SECONDS: u64 = 20;

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    program: String,
    directory: TempDir,
    admin: SocketAddr,
}

impl Daemon {
    /// Starts `rationd serve` with this configuration, to which socket and admin address are added,
    /// and returns when both answer. `config` must hold no `[listen]` table; it may begin
    /// with keys of it.
    ///
    /// # Panics
    /// When the daemon does not come up: its log is part of the message.
    #[must_use]
    pub fn start(config: &str) -> Self {
        Self::start_at(&Place::here(), config)
    }

    /// The same somewhere else, its admin address there too.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_at(place: &Place, config: &str) -> Self {
        Self::start_built(env!("CARGO_BIN_EXE_rationd"), place, config)
    }

    /// The same with a program of another build.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_built(program: &str, place: &Place, config: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("rationd-test-").tempdir().expect("a temporary directory");
        let file = directory.path().join("rationd.toml");
        let socket = directory.path().join("rationd.sock");
        let listen = format!("[listen]\nsocket = {socket:?}\nadmin = \"{}:0\"\n\n", place.host);
        fs::write(&file, listen + config).expect("a config file");
        let child = launch(program, place, directory.path());
        let mut daemon = Self { child, program: program.into(), directory, admin: ([127, 0, 0, 1], 0).into() };
        daemon.wait_until_ready(place);
        daemon
    }

    /// Ends it as a crash does, if it still runs, and starts it again: the same configuration, the same socket.
    /// Its log begins anew, and its admin address is another.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = launch(&self.program, &Place::here(), self.directory.path());
        self.wait_until_ready(&Place::here());
    }

    fn wait_until_ready(&mut self, place: &Place) {
        let head = format!("{}:", place.host);
        self.admin = self.wait_until("an admin address is in the log", |daemon| daemon.logged_admin(&head));
        self.wait_until("the socket accepts", |daemon| daemon.connect().ok());
    }

    fn wait_until<T>(&mut self, what: &str, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        wait_for(what, READY_SECONDS, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("rationd ended with {status} before {what}; its log:\n{}", self.log());
            }
            ready(self)
        })
    }

    /// The TCP address for clients that the operating system chose for `tcp = "127.0.0.1:0"`.
    ///
    /// # Panics
    /// When the configuration has none.
    #[must_use]
    pub fn tcp(&self) -> SocketAddr {
        // The log is written by a thread of its own, which may come after the socket.
        wait_for("a TCP address is in the log", READY_SECONDS, || self.logged("clients over TCP", "127.0.0.1:"))
    }

    /// The admin address that the operating system chose.
    fn logged_admin(&self, head: &str) -> Option<SocketAddr> {
        self.logged("admin", head)
    }

    /// The address in a line of the log with `words`; it begins with `head`.
    fn logged(&self, words: &str, head: &str) -> Option<SocketAddr> {
        self.log().lines().filter(|line| line.contains(words)).find_map(|line| {
            let rest = &line[line.find(head)?..];
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
            rest[..end].parse().ok().filter(|address: &SocketAddr| address.port() != 0)
        })
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("rationd.sock")
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.directory.path().join("rationd.toml")
    }

    /// Its directory, which goes with it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new connection to its socket; a read that gets nothing for two seconds is an error.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn connect(&self) -> io::Result<Connection<UnixStream>> {
        let stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(Connection::new(stream))
    }

    /// Asks on a connection of its own.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, command: &str) -> super::resp::Reply {
        let mut connection = self.connect().expect("the daemon accepts");
        connection.ask_text(command).unwrap_or_else(|error| panic!("{command}: {error}; log:\n{}", self.log()))
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its admin address.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Sends its process a signal by name (`TERM`, `HUP`).
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// What its admin address tells now.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics::scrape(self.admin)
    }

    /// Whether its process is still there.
    ///
    /// # Panics
    /// When the operating system does not know it.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is our child");
    }

    /// Asks it to leave and waits until it has.
    ///
    /// # Panics
    /// When it is still there after five seconds.
    pub fn terminate(&mut self) -> ExitStatus {
        signal(self.child.id(), "TERM");
        let child = &mut self.child;
        wait_for("the daemon leaves", 5, || child.try_wait().expect("it is our child"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes what this environment says to a daemon, or to a test, away from a command.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RATIOND_")) {
        command.env_remove(name);
    }
}

/// The process, with what [`Daemon::start_at`] wrote into its directory.
fn launch(program: &str, place: &Place, directory: &Path) -> Child {
    let log = File::create(directory.join("log")).expect("a log file");
    let mut command = place.command(program);
    without_settings(&mut command);
    command
        .arg("--config")
        .arg(directory.join("rationd.toml"))
        .arg("serve")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("the daemon was built")
}

/// Sends a signal by name (`TERM`, `STOP`, `CONT`) to a process that a test started.
///
/// # Panics
/// When the process is not there.
pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &process.to_string()]).status().expect("kill exists");
    assert!(status.success(), "kill -s {name} {process}: {status}");
    if name == "STOP" {
        // Each thread stops when it is scheduled next, which may take a moment.
        super::poll::wait_until("all threads stand still", 10, || is_stopped(process));
    }
}

fn is_stopped(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    tasks.flatten().all(|task| {
        let line = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        line.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}
