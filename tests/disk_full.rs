//! A disk that is full: a daemon whose log cannot be written goes on, and one that cannot make its socket says why.

use crate::support;

use std::fs::{self, File};
use std::process::{Command, Stdio};

use support::poll::{wait_for, wait_until};
use support::process::{signal, without_settings};
use support::resp::{Connection, Reply};
use support::skip::skipped;

const POLICY: &str = "[policy.api]\nlimits = [\"1000/1h fixed\"]\n";

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, socket) = (directory.path().join("rationd.toml"), directory.path().join("rationd.sock"));
    fs::write(&file, format!("[listen]\nsocket = {socket:?}\nadmin = \"off\"\n{POLICY}")).expect("a file");
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("-vv").arg("-c").arg(&file).arg("serve");
    command.stdin(Stdio::null()).stdout(full.try_clone().expect("a second handle")).stderr(full);
    let mut child = command.spawn().expect("cargo built it");
    let connect = || std::os::unix::net::UnixStream::connect(&socket).ok();
    let mut connection = Connection::new(wait_for("it listens", 20, connect));
    for round in 1..=100 {
        let reply = connection.ask_text("RATION.CHECK api u1").expect("an answer");
        assert_eq!(reply.items()[2].int(), 1000 - round);
        let reloaded = connection.ask_text("RATION.RELOAD").expect("an answer");
        assert!(!matches!(reloaded, Reply::Error(_)), "{reloaded:?}");
    }
    signal(child.id(), "TERM");
    let mut ended = None;
    wait_until("it leaves", 20, || {
        ended = child.try_wait().expect("our child");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn a_socket_for_which_there_is_no_room_is_told_of() {
    let mount =
        "mount -t tmpfs -o nr_inodes=1 none \"$1\" && exec \"$2\" serve --socket \"$1/rationd.sock\" --admin off";
    let inside = |script: &str, words: &[&str]| {
        let mut command = Command::new("unshare");
        without_settings(&mut command);
        command.args(["--mount", "sh", "-c", script, "sh"]).args(words).stdin(Stdio::null()).output()
    };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    let may = inside("mount -t tmpfs none \"$1\"", &[&path]).is_ok_and(|output| output.status.success());
    if !may {
        return skipped("disk_full", "only root may mount a disk that is full", "root unshare namespaces");
    }
    let output = inside(mount, &[&path, env!("CARGO_BIN_EXE_rationd")]).expect("it was there just now");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{told}");
    assert!(told.contains("rationd.sock") && told.contains("No space left on device"), "{told}");
}
