//! What people see of a daemon while it works: `rationd top`, `rationd denials`, the file of denials, and the status
//! page of the admin address.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use support::clock::Watch;
use support::metrics::get;
use support::poll::wait_for;
use support::process::{Daemon, without_settings};
use support::server::{Server, free_port};
use support::skip::skipped;

const POLICIES: &str = "[policy.api]\nlimits = [\"1000000/1h fixed\"]\n[policy.tight]\nlimits = [\"3/1h fixed\"]\n\
    [policy.tight.override.evil]\nblocked = true\n[policy.watched]\nlimits = [\"1/1h fixed\"]\nshadow = true\n";

fn rationd(daemon: &Daemon, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("--socket").arg(daemon.socket()).args(words).output().expect("cargo built it")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn check(daemon: &Daemon, policy: &str, key: &str, times: usize) {
    let mut client = daemon.connect().expect("it listens");
    for _ in 0..times {
        client.ask_text(&format!("RATION.CHECK {policy} {key}")).expect("an answer");
    }
}

/// The head and as much of the body as `enough` wants.
fn read_until(admin: SocketAddr, lines: &[&str], enough: impl Fn(&str) -> bool) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(admin).expect("the admin address accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out is not zero");
    stream.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).expect("a request goes out");
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !enough(&text) {
        match stream.read(&mut part).expect("more comes") {
            0 => break,
            len => text.push_str(&String::from_utf8_lossy(&part[..len])),
        }
    }
    (stream, text)
}

fn ask(admin: SocketAddr, lines: &[&str]) -> String {
    read_until(admin, &[lines, &["connection: close"]].concat(), |_| false).1
}

#[test]
fn top_tells_of_rates_and_of_the_keys_that_are_hot() {
    let daemon = Daemon::start(POLICIES);
    check(&daemon, "api", "busy", 50);
    check(&daemon, "api", "calm", 10);
    check(&daemon, "tight", "greedy", 20);
    let ended = AtomicBool::new(false);
    let figures = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                check(&daemon, "api", "busy", 10);
            }
        });
        let figures = json(&rationd(&daemon, &["-o", "json", "top", "--once"]));
        ended.store(true, Ordering::Relaxed);
        figures
    });
    let api = figures["policies"].as_array().expect("a list").iter().find(|policy| policy["name"] == "api");
    let api = api.unwrap_or_else(|| panic!("{figures}"));
    assert!(api["allowed_per_s"].as_f64().expect("a rate") > 0.0, "{figures}");
    assert_eq!(api["share"], 1_000_000);
    assert_eq!(figures["hot"]["used"][0]["key"], "busy", "{figures}");
    assert_eq!(figures["hot"]["denied"][0]["key"], "greedy", "{figures}");
    assert_eq!(figures["hot"]["denied"][0]["times"], 17, "{figures}");
    assert!(figures["store"].is_null() && figures["fleet"].is_null(), "{figures}");
    let text = String::from_utf8(rationd(&daemon, &["top", "--once", "--filter", "tight"]).stdout).expect("text");
    assert!(text.contains("greedy") && !text.contains("busy"), "{text}");
    // Programs get the part that was asked for, in the order that was, as people do.
    let part = json(&rationd(&daemon, &["-o", "json", "top", "--once", "--filter", "tight"]));
    let names = |list: &Value, field: &str| {
        list.as_array()
            .expect("a list")
            .iter()
            .map(|one| one[field].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&part["policies"], "name"), ["tight"], "{part}");
    assert_eq!(names(&part["hot"]["used"], "key"), ["greedy"], "{part}");
    let live = rationd(&daemon, &["top"]);
    assert_eq!(live.status.code(), Some(2), "a pipe is no terminal: {live:?}");
}

/// To ask takes threads, whose end wakes who waits for them, and who waits next.
#[test]
fn top_waits_for_the_interval_that_its_rates_are_of() {
    let daemon = Daemon::start(POLICIES);
    let watch = Watch::start();
    rationd(&daemon, &["top", "--once", "--interval", "2"]);
    let took = watch.elapsed();
    assert!(took >= Duration::from_secs(2), "it took {took:?}");
}

#[test]
fn top_adds_what_several_daemons_do() {
    let (one, other) = (Daemon::start(POLICIES), Daemon::start(POLICIES));
    check(&one, "api", "both", 30);
    check(&other, "api", "both", 20);
    check(&other, "tight", "greedy", 5);
    let socket = other.socket();
    let and = socket.to_str().expect("a plain path");
    let figures = json(&rationd(&one, &["-o", "json", "top", "--once", "--and", and]));
    assert_eq!((&figures["daemons"], &figures["keys"]), (&2.into(), &3.into()), "{figures}");
    assert_eq!((&figures["hot"]["used"][0]["key"], &figures["hot"]["used"][0]["times"]), (&"both".into(), &50.into()));
    assert_eq!(figures["hot"]["denied"][0]["times"], 2, "{figures}");
    assert_eq!(figures["policies"][0]["share"], 2_000_000, "{figures}");
    let text = String::from_utf8(rationd(&one, &["top", "--once", "--and", and]).stdout).expect("text");
    assert!(text.starts_with("2 daemons of rationd "), "{text}");
    let rows: Vec<_> = figures["by_daemon"].as_array().expect("a list").iter().map(|row| &row["socket"]).collect();
    assert_eq!(rows, [one.socket().to_str().expect("a plain path"), and], "{figures}");
    drop(other);
    // What the others do is told, and that one is missing.
    for words in [&["top", "--once", "--and", and][..], &["-o", "json", "top", "--once", "--and", and]] {
        let missed = rationd(&one, words);
        assert_eq!(missed.status.code(), Some(69), "{missed:?}");
        assert!(String::from_utf8_lossy(&missed.stderr).contains(and), "{missed:?}");
        let told = String::from_utf8_lossy(&missed.stdout);
        assert!(told.contains("1 OF 2 daemons of ") || told.contains("\"daemons\":1,"), "{missed:?}");
    }
}

/// Like `rationd top fleet/*.sock`. Where `--socket` is among them, too, it counts once.
#[test]
fn top_looks_at_the_daemons_that_are_named() {
    let (one, other) = (Daemon::start(POLICIES), Daemon::start(POLICIES));
    check(&one, "api", "both", 30);
    check(&other, "api", "both", 20);
    let sockets = [one.socket(), other.socket()];
    let [a, b] = sockets.each_ref().map(|socket| socket.to_str().expect("a plain path"));
    for (variable, words, daemons, times) in [
        (None, &["-o", "json", "top", "--once", a, b][..], 2.into(), 50),
        (Some(a), &["-o", "json", "top", "--once", b], Value::Null, 20),
        (None, &["-s", a, "-o", "json", "top", "--once", a, b], 2.into(), 50),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        command.envs(variable.map(|path| ("RATIOND_SOCKET", path)));
        let figures = json(&command.args(words).output().expect("cargo built it"));
        assert_eq!((&figures["daemons"], &figures["hot"]["used"][0]["times"]), (&daemons, &times.into()), "{figures}");
    }
}

/// Plays a terminal: waits until something is drawn, sends the signal, and says how it ended and whether the screen was given back.
const ON_A_TERMINAL: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
seen = b""
while b"quit" not in seen:
    seen += os.read(terminal, 4096)
os.kill(child, signal.SIGTERM)
try:
    while part := os.read(terminal, 4096):
        seen += part
except OSError:
    pass
print(os.waitpid(child, 0)[1], b"\x1b[?1049l" in seen)
"#;

/// As by `timeout 60 rationd top`: it left the last picture on the terminal, and what was typed then was not seen.
#[test]
fn top_gives_the_terminal_back_when_it_is_ended_by_a_signal() {
    let daemon = Daemon::start(POLICIES);
    let mut command = Command::new("python3");
    without_settings(&mut command);
    let command = command.args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_rationd"), "--socket"]);
    let output = command.arg(daemon.socket()).arg("top").env("TERM", "xterm").output().expect("python3 is there");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0 True", "{output:?}");
}

/// It went on for ever, and so did a shell, which waits for each part of a pipe.
#[test]
fn top_ends_when_nobody_reads_what_it_tells() {
    let daemon = Daemon::start(POLICIES);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    let command = command.arg("--socket").arg(daemon.socket()).args(["-o", "json", "top"]);
    let mut top = command.stdout(std::process::Stdio::piped()).spawn().expect("cargo built it");
    let mut first = [0; 1];
    let mut stdout = top.stdout.take().expect("it was asked for");
    stdout.read_exact(&mut first).expect("a line");
    drop(stdout);
    let ended = wait_for("top has ended", 10, || top.try_wait().expect("it is a child"));
    assert!(ended.success(), "{ended:?}");
}

/// An ssh server for this user on a port of its own, and a client's connection to it that brings a socket here.
struct Tunnel {
    socket: std::path::PathBuf,
    server: std::process::Child,
    client: std::process::Child,
    _files: tempfile::TempDir,
}

impl Tunnel {
    fn to(remote: &std::path::Path) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let file = |name: &str| files.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]).status();
            assert!(made.expect("it was found").success());
        }
        let (port, socket) = (free_port(), files.path().join("here.sock"));
        // Only root's server wants it, and only root may make it.
        let _ = fs::create_dir_all("/run/sshd");
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n",
            file("host"),
            file("user.pub")
        );
        fs::write(file("server"), server).expect("a file");
        let mut server = Command::new("/usr/sbin/sshd");
        let server = server.args(["-D", "-f", &file("server"), "-E", &file("log")]).spawn().expect("it was found");
        wait_for("sshd listens", 20, || TcpStream::connect(("127.0.0.1", port)).ok());
        let forward = format!("{}:{}", socket.display(), remote.display());
        let mut client = Command::new("ssh");
        client.args(["-F", "none", "-nNT", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        client.args(["-o", "StreamLocalBindUnlink=yes", "-o", "ExitOnForwardFailure=yes", "-i", &file("user")]);
        client.args(["-p", &port.to_string(), "-L", &forward, "127.0.0.1"]);
        let client = client.spawn().expect("it was found");
        let tunnel = Self { socket, server, client, _files: files };
        wait_for("the socket is here", 20, || UnixStream::connect(&tunnel.socket).ok());
        tunnel
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// As docs/operate/top.md says it.
#[test]
fn top_adds_what_a_daemon_does_whose_socket_ssh_brings() {
    let wanted = ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"];
    if wanted.iter().any(|program| !std::path::Path::new(program).exists()) {
        return skipped("top over ssh", "no ssh server here", &wanted.join(" "));
    }
    let (one, other) = (Daemon::start(POLICIES), Daemon::start(POLICIES));
    check(&one, "api", "both", 30);
    check(&other, "api", "both", 20);
    let tunnel = Tunnel::to(&other.socket());
    let and = tunnel.socket.to_str().expect("a plain path");
    let figures = json(&rationd(&one, &["-o", "json", "top", "--once", "--and", and]));
    assert_eq!((&figures["daemons"], &figures["hot"]["used"][0]["times"]), (&2.into(), &50.into()), "{figures}");
}

/// One that hangs answers only after ten seconds: asked one after the other, several daemons would keep the rest waiting for each.
#[test]
fn top_asks_several_daemons_at_once() {
    let daemon = Daemon::start(POLICIES);
    let directory = tempfile::tempdir().expect("a directory");
    let doors = ["a", "b"].map(|name| directory.path().join(name));
    let listeners = doors.clone().map(|door| UnixListener::bind(door).expect("a new path"));
    let behind = daemon.socket();
    // Behind both doors is the daemon, and neither opens before somebody stands at the other.
    std::thread::spawn(move || {
        loop {
            let clients = listeners.each_ref().map(|listener| listener.accept().expect("somebody asks").0);
            for mut client in clients {
                let mut request = [0; 4096];
                let len = client.read(&mut request).expect("a request");
                let mut daemon = UnixStream::connect(&behind).expect("it listens");
                daemon.write_all(&request[..len]).expect("it takes a request");
                daemon.shutdown(Shutdown::Write).expect("it is open");
                std::io::copy(&mut daemon, &mut client).expect("an answer");
            }
        }
    });
    let [one, other] = doors.each_ref().map(|door| door.to_str().expect("a plain path"));
    let figures = json(&rationd(&daemon, &["-o", "json", "top", "--once", "--and", one, "--and", other]));
    assert_eq!(figures["daemons"], 3, "{figures}");
}

#[test]
fn top_tells_of_the_store_and_that_it_is_away() {
    let redis = Server::plain();
    let daemon = Daemon::start(&format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n{POLICIES}", redis.port));
    check(&daemon, "api", "k", 20);
    let figures = json(&rationd(&daemon, &["-o", "json", "top", "--once"]));
    assert_eq!(figures["store"]["servers"][0]["up"], true, "{figures}");
    let held = figures["policies"][0]["held"].as_u64().expect("a count");
    assert!(held > 0, "{figures}");
    drop(redis);
    wait_for("the store is away", 10, || {
        let figures = json(&rationd(&daemon, &["-o", "json", "top", "--once"]));
        (figures["store"]["servers"][0]["up"] == false).then_some(())
    });
}

#[test]
fn denials_are_listed_by_key_limit_and_reason() {
    let daemon = Daemon::start(POLICIES);
    check(&daemon, "tight", "greedy", 10);
    check(&daemon, "tight", "evil", 2);
    check(&daemon, "watched", "k", 5);
    let all = wait_for("all are told", 10, || {
        let told = json(&rationd(&daemon, &["-o", "json", "denials"]));
        let sum: u64 = told.as_array()?.iter().filter_map(|one| one["count"].as_u64()).sum();
        (sum == 7 + 2 + 4).then_some(told)
    });
    let told = |key: &str| {
        let one = all.as_array().expect("a list").iter().find(|one| one["key"] == key);
        let one = one.unwrap_or_else(|| panic!("{key} is not in {all}"));
        (one["count"].as_u64(), one["reason"].as_str(), one["limit"].as_str())
    };
    assert_eq!(told("greedy"), (Some(7), Some("rate"), Some("3/1h fixed")));
    assert_eq!(told("evil"), (Some(2), Some("blocked"), None));
    assert_eq!(told("k"), (Some(4), Some("shadow"), Some("1/1h fixed")));
    let one = json(&rationd(&daemon, &["-o", "json", "denials", "--key", "greedy"]));
    assert_eq!(one.as_array().map(Vec::len), Some(1), "{one}");
    let text = String::from_utf8(rationd(&daemon, &["denials", "--policy", "tight"]).stdout).expect("text");
    assert!(text.contains("greedy") && text.contains("blocked") && !text.contains("watched"), "{text}");
}

#[test]
fn the_file_of_denials_is_rotated_by_a_signal() {
    let daemon = Daemon::start(&format!("[denials]\nfile = \"denials.ndjson\"\n{POLICIES}"));
    let (file, moved) = (daemon.directory().join("denials.ndjson"), daemon.directory().join("denials.1"));
    let told = |path: &std::path::Path, key: &str| {
        let text = fs::read_to_string(path).ok()?;
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON a line"));
        lines.filter(|line| line["key"] == key).filter_map(|line| line["count"].as_u64()).reduce(|sum, more| sum + more)
    };
    check(&daemon, "tight", "one", 10);
    let count = wait_for("a line", 10, || told(&file, "one").filter(|count| *count == 7));
    assert_eq!(count, 7);
    fs::rename(&file, &moved).expect("it is there");
    daemon.signal("HUP");
    wait_for("the daemon has read its configuration again", 10, || daemon.log().contains("reloaded").then_some(()));
    check(&daemon, "tight", "two", 10);
    wait_for("a line in the new file", 10, || told(&file, "two").filter(|count| *count == 7));
    assert_eq!(told(&moved, "two"), None);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o077, 0, "it holds keys");
}

/// Lines come each second, and a daemon that is replaced does not live until the next one.
#[test]
fn what_was_denied_last_is_in_the_file_when_the_daemon_has_left() {
    let mut daemon = Daemon::start(&format!("[denials]\nfile = \"denials.ndjson\"\n{POLICIES}"));
    check(&daemon, "tight", "late", 10);
    assert!(daemon.terminate().success(), "{}", daemon.log());
    let text = fs::read_to_string(daemon.directory().join("denials.ndjson")).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON a line"));
    let told: u64 = lines.filter(|line| line["key"] == "late").filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(told, 7, "{text}");
}

/// Whoever asks twice does not want to wait for the last lines, either: to open a pipe without a reader takes until one comes.
#[test]
fn a_second_signal_ends_a_daemon_that_waits_for_its_file_of_denials() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo exists").success());
    let mut daemon = Daemon::start(&format!("[denials]\nfile = {pipe:?}\n{POLICIES}"));
    check(&daemon, "tight", "late", 10);
    daemon.signal("TERM");
    wait_for("all is settled", 10, || daemon.log().contains("left: everything is settled").then_some(()));
    let watch = Watch::start();
    assert!(daemon.terminate().success(), "{}", daemon.log());
    let took = watch.elapsed();
    assert!(took < Duration::from_millis(1_500), "it would have waited for 1.75 s: {took:?}");
}

#[test]
fn the_status_page_shows_no_key_unless_it_may() {
    let daemon = Daemon::start(POLICIES);
    check(&daemon, "api", "acct:<b>1", 50);
    let html = ask(daemon.admin(), &["GET / HTTP/1.1", "host: localhost", "accept: text/html"]);
    assert!(html.starts_with("HTTP/1.1 200") && html.contains("<td class=t>api<td>50"), "{html}");
    assert!(html.contains("content-security-policy: default-src 'none'"), "{html}");
    assert!(!html.contains("acct:") && html.contains("listen.admin_keys"), "{html}");
    let (status, figures) = get(daemon.admin(), "/top.json");
    let figures: Value = serde_json::from_str(&figures).expect("JSON");
    assert!(status == 200 && figures["hot"].is_null(), "{figures}");
    let daemon = Daemon::start(&format!("admin_keys = true\n{POLICIES}"));
    check(&daemon, "api", "acct:<b>1", 50);
    let html = ask(daemon.admin(), &["GET / HTTP/1.1", "host: localhost", "accept: text/html"]);
    assert!(html.contains("<td class=t>acct:&lt;b&gt;1<td>50"), "{html}");
    let refused = ask(daemon.admin(), &["POST / HTTP/1.1", "host: localhost", "content-length: 0"]);
    assert!(refused.starts_with("HTTP/1.1 405"), "{refused}");
}

#[test]
fn events_come_each_second_to_as_many_as_may_look() {
    let daemon = Daemon::start(POLICIES);
    check(&daemon, "api", "k", 7);
    let lines = ["GET /events HTTP/1.1", "host: localhost"];
    let (first, text) = read_until(daemon.admin(), &lines, |text| text.matches("event: top\n").count() == 3);
    assert!(text.contains("content-type: text/event-stream") && text.contains("event: history\n"), "{text}");
    assert!(text.contains("\"allowed\":7"), "{text}");
    let mut streams = vec![first];
    for _ in 1..8 {
        let (stream, text) = read_until(daemon.admin(), &lines, |text| text.contains("event: top\n"));
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        streams.push(stream);
    }
    let (_, refused) = read_until(daemon.admin(), &lines, |text| text.contains("\r\n\r\n"));
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    drop(streams);
    wait_for("the places are free again", 20, || {
        let (_, text) = read_until(daemon.admin(), &lines, |text| text.contains("\r\n\r\n"));
        text.starts_with("HTTP/1.1 200").then_some(())
    });
}

#[test]
fn web_pages_of_others_see_nothing() {
    let daemon = Daemon::start(&format!("admin_keys = true\n{POLICIES}"));
    for path in ["/", "/events", "/top.json"] {
        let line = format!("GET {path} HTTP/1.1");
        for field in ["host: evil.example", "host: localhost\r\nsec-fetch-site: cross-site"] {
            let refused = ask(daemon.admin(), &[&line, field, "accept: text/html"]);
            assert!(refused.starts_with("HTTP/1.1 403"), "{path}, {field}: {refused}");
        }
    }
}
