//! A disk that is full: a daemon whose log cannot be written goes on, one whose lines about denials have no room keeps them whole,
//! and one that cannot make its socket says why.

use crate::support;

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

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

/// A daemon that ends with its test, also where that fails.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A batch of lines that did not fit left a part of its last line, to which the next line was appended when there was room again:
/// neither of them was JSON. How many were lost nobody told.
#[test]
fn lines_about_denials_stay_whole_and_those_that_had_no_room_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("disk")).expect("a directory");
    // Sixteen pages, of which one is free.
    let mount = "mount -t tmpfs -o size=64k none \"$1\" && head -c 61440 /dev/zero > \"$1/filler\" && exec \"$2\" -c \"$3\" serve";
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        without_settings(&mut command);
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(path("disk"));
        command.arg(env!("CARGO_BIN_EXE_rationd")).arg(path("rationd.toml")).stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    if !inside("mount -t tmpfs none \"$1\"").status().is_ok_and(|status| status.success()) {
        return skipped("disk_full, denials", "only root may mount a disk that is full", "root unshare namespaces");
    }
    let (socket, file) = (path("rationd.sock"), path("disk").join("denials"));
    let config = format!(
        "[listen]\nsocket = {socket:?}\nadmin = \"off\"\n[denials]\nfile = {file:?}\n[policy.api]\nlimits = [\"1/1h fixed\"]\n"
    );
    fs::write(path("rationd.toml"), config).expect("a file");
    let child = inside(mount).stderr(File::create(path("log")).expect("a file")).spawn().expect("it was there");
    let mut daemon = Ending(child);
    let log = || fs::read_to_string(path("log")).expect("its log");
    let connect = || std::os::unix::net::UnixStream::connect(&socket).ok();
    let mut connection = Connection::new(wait_for("it listens", 20, connect));
    let mut deny = |key: String| {
        let reply = connection.ask_text(&format!("RATION.CHECK api {key} COST 2")).expect("an answer");
        assert_eq!(reply.items()[0].int(), 1, "{reply:?}");
    };
    // The daemon's own view of its disk, which this process does not see.
    let seen = std::path::PathBuf::from(format!("/proc/{}/root{}", daemon.0.id(), path("disk").display()));
    (0..60).for_each(|number| deny(format!("key-{number}")));
    wait_for("a batch has no room", 20, || log().contains("cannot be written").then_some(()));
    fs::remove_file(seen.join("filler")).expect("it is there");
    deny("after".into());
    let read = || fs::read_to_string(seen.join("denials")).unwrap_or_default();
    let text = wait_for("there is room again", 20, || Some(read()).filter(|text| text.contains("after")));
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(line);
    let broken: Vec<_> = text.lines().filter(|line| json(line).is_err()).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let lost = 61 - text.lines().count();
    assert!(lost > 0, "{text}");
    let told = wait_for("the log says how many were lost", 20, || {
        let log = log();
        log.lines().find(|line| line.contains("denials.file is written again")).map(str::to_owned)
    });
    assert_eq!(json(&told).expect("JSON")["lines"], lost, "{told}");
    signal(daemon.0.id(), "TERM");
    wait_for("it leaves", 20, || daemon.0.try_wait().expect("our child"));
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
