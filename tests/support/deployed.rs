//! A program with its files of deploy/, in which the test's addresses stand instead of theirs.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::poll::wait_for;

/// The addresses that stand in deploy/.
const SOCKET: &str = "/run/rationd/rationd.sock";
const PORT: &str = "8080";
const BACKEND: &str = "127.0.0.1:9000";

/// What is run: which program, from which files, and how.
pub struct Example {
    pub name: &'static str,
    pub program: &'static str,
    /// What makes it say its version.
    pub version: &'static str,
    /// Below deploy/; the first is the one that it is started with.
    pub files: &'static [&'static str],
    /// Whether it passes requests on, or answers them itself.
    pub is_proxy: bool,
    /// Whether the program has all that it needs beside itself, and what that is.
    pub needs: (fn(&str) -> bool, &'static str),
    pub command: fn(&Setting<'_>) -> Command,
}

/// What a program is started with.
pub struct Setting<'a> {
    pub program: &'a str,
    /// The first file, in the directory.
    pub file: &'a Path,
    pub directory: &'a Path,
    pub port: u16,
}

impl Setting<'_> {
    /// The program, these words, the file.
    pub fn run(&self, words: &[&str]) -> Command {
        self.run_by(self.program, words)
    }

    pub fn run_by(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).arg(self.file);
        command
    }
}

/// No need.
pub const NOTHING: (fn(&str) -> bool, &str) = (|_| true, "");

/// Whether a command ends well.
pub fn succeeds(program: &str, words: &[&str]) -> bool {
    let status =
        Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Where a program is, also one for administrators.
pub fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|directory| Path::new(directory).join(program)).find(|file| file.is_file())
}

/// A program that serves, dead when dropped.
pub struct Running {
    pub name: &'static str,
    child: Child,
    pub port: u16,
    directory: TempDir,
}

impl Running {
    /// Returns when it listens. Whoever takes the port before it does makes it try another.
    pub fn start(example: &Example, program: &str, socket: &Path, backend: SocketAddr) -> Self {
        let mut log = String::new();
        for _ in 0..5 {
            let directory = tempfile::Builder::new().prefix("rationd-deploy-").tempdir().expect("a directory");
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
            let port = port.expect("a free port").port();
            for file in example.files {
                put(file, directory.path(), socket, port, backend);
            }
            let file = directory.path().join(Path::new(example.files[0]).file_name().expect("a file"));
            let log_file = File::create(directory.path().join("log")).expect("a log file");
            let child = (example.command)(&Setting { program, file: &file, directory: directory.path(), port })
                .current_dir(directory.path())
                .env("HOME", directory.path())
                .env_remove("XDG_DATA_HOME")
                .env_remove("XDG_CONFIG_HOME")
                .stdin(Stdio::null())
                .stdout(log_file.try_clone().expect("a second handle"))
                .stderr(log_file)
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            let mut running = Self { name: example.name, child, port, directory };
            let listens = wait_for(&format!("{} listens", example.name), 60, || {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Some(true);
                }
                running.child.try_wait().expect("it is our child").is_some().then_some(false)
            });
            if listens {
                return running;
            }
            log = running.log();
        }
        panic!("{} does not start:\n{log}", example.name);
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts a file of deploy/ into `directory`, with the test's addresses.
fn put(file: &str, directory: &Path, socket: &Path, port: u16, backend: SocketAddr) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    let text = fs::read_to_string(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let text = text
        .replace(SOCKET, socket.to_str().expect("a path in UTF-8"))
        .replace(PORT, &port.to_string())
        .replace(BACKEND, &backend.to_string())
        .replace("/etc/nginx/", &format!("{}/", directory.display()))
        .replace("/etc/haproxy/", &format!("{}/", directory.display()));
    assert!(!text.contains("/run/rationd") && !text.contains(PORT), "{file} has addresses that no test replaces");
    fs::write(directory.join(Path::new(file).file_name().expect("a file")), text).expect("a file");
}

pub fn version(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().expect("it is there");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let number = said.find(|c: char| c.is_ascii_digit()).map_or("", |at| &said[at..]);
    number.split([' ', '\n', '-', '+', 'p']).next().unwrap_or_default().to_owned()
}
