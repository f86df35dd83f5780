//! Servers that a benchmark starts: each on its core, in a directory of its own, ended with the run.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each benchmark uses its part")]

use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The version that is measured beside.
const THROTTLECRAB: &str = "0.4.40";

/// Why a benchmark ends.
#[derive(Debug)]
pub struct Failed(pub String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

/// A process that dies with the run, and its directory.
pub struct Process {
    child: Child,
    directory: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub fn start(mut command: Command, directory: tempfile::TempDir) -> Result<Self, Failed> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| Failed(format!("cannot run {command:?}: {error}")))?;
        Ok(Self { child, directory })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

/// A command on core `core`, where that can be arranged.
pub fn pinned(program: &str, core: usize) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let has_taskset = Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    if cores < 2 || !has_taskset {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string(), program]);
    command
}

/// A Redis of its own that keeps nothing, and its socket: on the core of servers, where that can be arranged, with a module
/// where one is named.
pub fn redis_server(module: Option<&str>) -> Result<(Process, PathBuf), Failed> {
    let directory = directory()?;
    let socket = directory.path().join("redis.sock");
    let mut command = pinned("redis-server", 0);
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
    if let Some(module) = module {
        command.args(["--loadmodule", module]);
    }
    let server = Process::start(command, directory)
        .map_err(|Failed(why)| Failed(format!("{why}; install it: apt-get install redis-server")))?;
    Ok((server, socket))
}

/// throttlecrab-server, built into the target directory if it is not there.
pub fn throttlecrab_server() -> Result<PathBuf, Failed> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("throttlecrab");
    let program = root.join("bin/throttlecrab-server");
    if !program.exists() {
        println!("building throttlecrab-server {THROTTLECRAB}, once; this takes minutes …");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["install", "throttlecrab-server", "--locked", "--version", THROTTLECRAB, "--root"]).arg(&root);
        output(cargo).map_err(|Failed(why)| {
            let end: Vec<_> = why.lines().rev().take(5).collect();
            let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
            Failed(format!("its build failed (it needs protoc: apt-get install protobuf-compiler):\n{end}"))
        })?;
    }
    Ok(program)
}

pub fn free_port() -> Result<u16, Failed> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| Failed(format!("no free port: {error}")))?.port())
}

pub fn directory() -> Result<tempfile::TempDir, Failed> {
    tempfile::tempdir().map_err(|error| Failed(format!("cannot make a directory: {error}")))
}

/// Tries until `probe` has something, for ten seconds at most.
pub fn await_condition<T>(name: &str, mut probe: impl FnMut() -> Option<T>) -> Result<T, Failed> {
    let (_never, timer) = std::sync::mpsc::channel::<()>();
    for _ in 0..500 {
        if let Some(found) = probe() {
            return Ok(found);
        }
        let _ = timer.recv_timeout(Duration::from_millis(20));
    }
    Err(Failed(format!("{name} did not answer within ten seconds of its start")))
}

/// Takes the configuration of this shell's daemon away from a command.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RATIOND_") {
            command.env_remove(name);
        }
    }
}

/// Standard output of a command that must succeed.
pub fn output(mut command: Command) -> Result<String, Failed> {
    let output = command.output().map_err(|error| Failed(format!("cannot run {command:?}: {error}")))?;
    if !output.status.success() {
        return Err(Failed(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// CPU time that a process has used, user and system; Linux counts in hundredths of a second.
pub fn cpu_seconds(process: u32) -> f64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { return f64::NAN };
    // Behind the name, which may hold anything: fields 3 and on; utime and stime are 14 and 15.
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(14) + ticks(15)) / 100.0
}
