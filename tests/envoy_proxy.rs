//! A real Envoy before a small upstream, with the configuration below deploy/envoy: five requests pass, then it
//! says 429; without the daemon they pass; with it again they do not. `tests/run packages` sets Envoy up.

use crate::support;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::clock::Watch;
use support::installed::installed;
use support::poll::wait_for;
use support::process::Daemon;
use support::resp::Reply;
use tempfile::TempDir;

/// Envoy's timeout for rationd in deploy/envoy/envoy.yaml.
const TIMEOUT: Duration = Duration::from_millis(100);

/// What tells of the policy, whoever asks.
const ALL_OF_IT: &str = "\"5/30d fixed\";q=5;w=2592000,\"20/1h fixed\";q=20;w=3600";

/// A running Envoy. Dead when dropped.
struct Envoy {
    child: Child,
    directory: TempDir,
    address: SocketAddr,
}

/// What Envoy answered.
struct Answer {
    status: u16,
    head: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `text` with what must be in it replaced.
fn with(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from:?} is not in the shipped file");
        text = text.replace(from, to);
    }
    text
}

/// Answers everything with 200.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..len]);
        while let Some(end) = seen.windows(4).position(|part| part == b"\r\n\r\n") {
            seen.drain(..end + 4);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nup\n").is_err() {
                return;
            }
        }
    }
}

fn request(address: SocketAddr, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: text.replace('\r', "") })
}

impl Envoy {
    /// Starts the shipped configuration, with ports that the operating system chooses.
    fn start(rls: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let up = upstream().port().to_string();
        let own = "failure_mode_deny: false\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03";
        let changes = [
            ("failure_mode_deny: false", own),
            ("port_value: 10000", "port_value: 0"),
            ("port_value: 8000", &format!("port_value: {up}")),
            ("/run/rationd/rls.sock", rls.to_str().expect("a plain path")),
        ];
        let file = directory.path().join("envoy.yaml");
        fs::write(&file, with(&shipped("envoy.yaml"), &changes)).expect("a file");
        let admin = directory.path().join("admin");
        let said = File::create(directory.path().join("access")).expect("a file");
        let log = File::create(directory.path().join("log")).expect("a file");
        let child = Command::new(installed("venv/bin/envoy"))
            .arg("-c")
            .arg(&file)
            .args(["--config-yaml", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}"])
            .arg("--admin-address-path")
            .arg(&admin)
            .args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"])
            .args(["--file-flush-interval-msec", "50"])
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(log)
            .spawn();
        let mut envoy = Self { child: child.expect("Envoy starts"), directory, address: ([127, 0, 0, 1], 0).into() };
        envoy.address = wait_for("Envoy listens", 30, || {
            if let Ok(Some(status)) = envoy.child.try_wait() {
                panic!("Envoy ended with {status}:\n{}", envoy.read("log"));
            }
            let admin: SocketAddr = fs::read_to_string(&admin).ok()?.trim().parse().ok()?;
            let listeners = request(admin, "/listeners")?;
            listeners.head.lines().find_map(|line| line.strip_prefix("edge::")?.parse().ok())
        });
        envoy
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Answer {
        request(self.address, path).unwrap_or_else(|| panic!("no answer; its log:\n{}", self.read("log")))
    }

    fn statuses(&self, path: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get(path).status).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The shipped configuration, its door at `rls`, its store's windows so long that none ends meanwhile.
fn daemon(rls: &Path) -> Daemon {
    let door = format!("envoy = {rls:?}");
    let changes =
        [("envoy = \"/run/rationd/rls.sock\"", door.as_str()), ("[listen]", ""), ("5/1m fixed", "5/30d fixed")];
    Daemon::start(&with(&shipped("rationd.toml"), &changes))
}

/// What `envoy --version` says between the first slashes behind its colon.
fn version() -> String {
    let said = Command::new(installed("venv/bin/envoy")).arg("--version").output().expect("it says its version");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let behind = said.split_once("version: ").map_or("", |(_, behind)| behind);
    behind.split('/').nth(1).expect("a version").to_owned()
}

#[test]
fn envoy_limits_tells_why_and_fails_open_until_the_daemon_is_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let rls = directory.path().join("rls.sock");
    let mut first = daemon(&rls);
    let envoy = Envoy::start(&rls);

    for left in (0..5).rev() {
        let passed = envoy.get("/login");
        assert_eq!(passed.status, 200, "{}\n{}", passed.head, envoy.read("log"));
        let told = passed.header("ratelimit").expect("a header field");
        assert!(told.starts_with(&format!("\"5/30d fixed\";r={left};t=")), "{told}");
        assert_eq!(passed.header("ratelimit-policy"), Some(ALL_OF_IT));
    }
    let denied = envoy.get("/login");
    assert_eq!(denied.status, 429, "{}", denied.head);
    assert!(denied.header("retry-after").is_some_and(|wait| wait.parse::<u32>().is_ok()), "{}", denied.head);
    assert_eq!(denied.header("x-ratelimit-limit"), Some("5, 5;w=2592000;name=\"login\""), "as Envoy itself says it");
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
    assert!(denied.header("ratelimit").is_some_and(|told| told.contains(";r=0;")), "{}", denied.head);
    assert_eq!(denied.header("ratelimit-policy"), Some(ALL_OF_IT), "the fields of every other proxy");
    assert_eq!(envoy.get("/").status, 200, "another policy");
    let Reply::Bulk(keys) = first.ask("RATION.KEYS") else { panic!("it lists keys") };
    let keys = String::from_utf8(keys).expect("JSON");
    assert_eq!(keys.matches("127.0.0.1").count(), 2, "both policies have the address as a key: {keys}");

    let lines = wait_for("the access log", 10, || Some(envoy.read("access")).filter(|log| log.contains("GET / 200")));
    assert_eq!(lines.matches("GET /login 200 policy=login reason=ok").count(), 5, "{lines}");
    assert_eq!(lines.matches("GET /login 429 policy=login reason=rate").count(), 1, "{lines}");
    assert_eq!(lines.matches("GET / 200 policy=per-address reason=ok").count(), 1, "{lines}");

    first.signal("STOP");
    let watch = Watch::start();
    assert_eq!(envoy.get("/login").status, 200, "it does not answer");
    let waited = watch.elapsed();
    // Envoy's timers count whole ms, and some ring up to 2.3 ms early.
    let early = Duration::from_millis(5);
    assert!(waited >= TIMEOUT - early && waited < TIMEOUT + Duration::from_secs(1), "{waited:?}");
    first.signal("CONT");
    first.kill();
    let watch = Watch::start();
    assert_eq!(envoy.statuses("/login", 8), [200; 8], "it is not there");
    let away = watch.elapsed();
    assert!(away < 8 * TIMEOUT + Duration::from_secs(1), "{away:?}");

    let second = daemon(&rls);
    let again = wait_for("Envoy asks the new daemon", 10, || {
        let answer = envoy.get("/login");
        answer.header("ratelimit").is_some().then_some(answer)
    });
    assert_eq!(again.status, 200);
    let statuses = envoy.statuses("/login", 6);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 4, "{statuses:?}");
    drop(second);
    let (version, late, away) = (version(), waited.as_millis(), away.as_millis() / 8);
    // A row of the table in docs/clients/proxies.md.
    writeln!(io::stderr(), "| Envoy, RLS | {version} | yes | {late} ms, {away} ms | yes |").expect("stderr");
}
