//! `THROTTLE` beside the server whose command it is: throttlecrab-server, asked the same at the same time.
//!
//! The program is the one that `cargo bench --bench compare` builds, or it is built here, once, below target/, and
//! without optimizations, which take most of the time and answer nothing else; that wants protoc (Debian's
//! protobuf-compiler). Where it cannot be had, the test says that it is skipped.
//! What is answered otherwise, and why:
//!
//! - A denial's `retry_after` rounds up: theirs rounds down, and who waits that long is denied again.
//! - A cost above `max_burst` has -1: theirs names a time at which a key that is not known yet is denied again.
//! - A `max_burst` of 1 is a limit: theirs forgets such a key at once, and lets everything pass.
//! - A key that was idle has `max_burst` tokens at most: theirs saves up twice as many, less two, until it
//!   forgets the key.
//! - Keys are bytes: theirs closes the connection where they are not UTF-8.

#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use crate::support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::poll::wait_for;
use support::process::Daemon;
use support::random::below;
use support::resp::{Connection, Reply};
use support::skip::skipped;

const VERSION: &str = "0.4.40";

/// Keys with numbers of their own, and checks of each.
const KEYS: u64 = 400;
const CHECKS: u64 = 12;

/// A throttlecrab-server on a port that the operating system chose.
struct Throttlecrab {
    child: Child,
    connection: Connection<TcpStream>,
}

impl Drop for Throttlecrab {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where benches/compare builds it, and where it is built here.
const ROOTS: [&str; 2] = [
    concat!(env!("CARGO_TARGET_TMPDIR"), "/throttlecrab"),
    concat!(env!("CARGO_TARGET_TMPDIR"), "/throttlecrab-plain"),
];

fn built(root: &str) -> PathBuf {
    Path::new(root).join("bin/throttlecrab-server")
}

/// The program, or why there is none. One test builds it, the others wait.
fn program() -> Result<PathBuf, String> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(program) = ROOTS.map(built).into_iter().find(|program| program.exists()) {
        return Ok(program);
    }
    let protoc = Command::new("protoc").arg("--version").stdout(Stdio::null()).status();
    protoc.map_err(|error| format!("protoc cannot be run ({error}): apt-get install protobuf-compiler"))?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "throttlecrab-server", "--locked", "--version", VERSION, "--root", ROOTS[1]]);
    let plain = [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "256"), ("DEBUG", "0")];
    cargo.envs(plain.map(|(name, value)| (format!("CARGO_PROFILE_RELEASE_{name}"), value)));
    // The lints and flags of this build are not meant for it.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR").stdin(Stdio::null());
    let ended = cargo.output().map_err(|error| format!("cargo cannot be run ({error})"))?;
    if ended.status.success() { Ok(built(ROOTS[1])) } else { Err(String::from_utf8_lossy(&ended.stderr).into_owned()) }
}

impl Throttlecrab {
    fn start() -> Option<Self> {
        let program = match program() {
            Ok(program) => program,
            Err(why) => {
                let wants = built(ROOTS[1]).display().to_string();
                skipped("throttlecrab", &format!("no throttlecrab-server {VERSION}: {why}"), &wants);
                return None;
            }
        };
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        let mut command = Command::new(program);
        command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port.to_string()]);
        command.args(["--log-level", "error"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it was built");
        // Until it answers: on a port where nobody listens yet a connection can be accepted by itself, or by whoever was given that port
        // meanwhile, and be reset.
        let connection = wait_for("throttlecrab-server answers", 20, || {
            let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
            let mut connection = Connection::new(stream);
            connection.ask_text("THROTTLE start 1 1 1 1").ok().map(|_| connection)
        });
        Some(Self { child, connection })
    }

    fn ask(&mut self, command: &str) -> Reply {
        self.connection.ask_text(command).unwrap_or_else(|error| panic!("throttlecrab: {command}: {error}"))
    }
}

fn ask(connection: &mut Connection<UnixStream>, command: &str) -> Reply {
    connection.ask_text(command).unwrap_or_else(|error| panic!("rationd: {command}: {error}"))
}

fn five(reply: &Reply) -> [i64; 5] {
    let items: Vec<_> = reply.items().iter().map(Reply::int).collect();
    items.try_into().expect("five integers")
}

/// Numbers whose tokens take long to come back, so that none does meanwhile: burst, count, period. A burst of one
/// is another test's.
fn numbers(random: &mut u64) -> (u64, u64, u64) {
    let (burst, count) = (2 + below(random, 60), 1 + below(random, 20));
    (burst, count, count * (1_000 + below(random, 50_000)) + below(random, count))
}

/// Apart, so that tests/run can have it built before the tests that ask it.
#[test]
fn server_is_built() {
    let Some(mut crab) = Throttlecrab::start() else { return };
    let throttled = five(&crab.ask("THROTTLE built 2 1 60 1"));
    assert_eq!(throttled[..3], [1, 2, 1], "let pass, of two, one is left");
}

#[test]
fn throttle_answers_as_throttlecrab_does() {
    let Some(mut crab) = Throttlecrab::start() else { return };
    let daemon = Daemon::start("");
    let mut ours = daemon.connect().expect("it accepts");
    let mut random = 0x5eed_0013;
    let (mut compared, mut same, mut denied, mut never) = (0, 0, 0, 0);
    for key in 0..KEYS {
        let (burst, count, period) = numbers(&mut random);
        let begun = Instant::now();
        for _ in 0..CHECKS {
            let quantity = [1, 1, 2, below(&mut random, 8), burst, burst + 1 + below(&mut random, 3)];
            let quantity = quantity[below(&mut random, 6) as usize];
            let command = format!("THROTTLE k{key} {burst} {count} {period} {quantity}");
            let (there, here) = (five(&crab.ask(&command)), five(&ask(&mut ours, &command)));
            // Both clocks go on between the two: a second may end.
            let passed = begun.elapsed().as_secs() as i64 + 1;
            assert_eq!(here[..3], there[..3], "{command}: {here:?}, there {there:?}");
            assert!((here[3] - there[3]).abs() <= passed, "{command}: {here:?}, there {there:?}");
            if here[0] == 1 {
                assert_eq!((here[4], there[4]), (0, 0), "{command}");
            } else if quantity > burst {
                assert!(here[4] == -1 && there[4] > 0, "{command}: {here:?}, there {there:?}");
                never += 1;
            } else {
                assert!((here[4] - there[4] - 1).abs() <= passed, "{command}: {here:?}, there {there:?}");
                denied += 1;
            }
            compared += 1;
            same += u64::from(here[..4] == there[..4]);
        }
    }
    println!("{compared} answers compared, {same} the same but for retry_after; {denied} denials, {never} for ever");
    assert!(denied > compared / 10 && never > compared / 20, "the checks missed what they are made for");
}

#[test]
fn a_burst_of_one_is_a_limit() {
    let Some(mut crab) = Throttlecrab::start() else { return };
    let daemon = Daemon::start("");
    let mut ours = daemon.connect().expect("it accepts");
    let command = "THROTTLE one 1 1 1000";
    let (there, here) = (five(&crab.ask(command)), five(&ask(&mut ours, command)));
    assert_eq!((there, here), ([1, 1, 0, 0, 0], [1, 1, 0, 0, 0]));
    assert_eq!(five(&crab.ask(command)), [1, 1, 0, 0, 0], "theirs limits now: ask it more");
    let again = five(&ask(&mut ours, command));
    assert!(again[..4] == [0, 1, 0, 0] && (900..=1_000).contains(&again[4]), "{again:?}");
}

#[test]
fn errors_are_throttlecrabs() {
    let Some(mut crab) = Throttlecrab::start() else { return };
    let daemon = Daemon::start("");
    let mut ours = daemon.connect().expect("it accepts");
    for words in [
        "",
        "k",
        "k 10 60",
        "k 10 10 60 1 1",
        "k 0 10 60",
        "k -1 10 60",
        "k 10 0 60",
        "k 10 -10 60",
        "k 10 10 0",
        "k 10 10 -60",
        "k 10 10 60 -1",
        "k 0 0 0 -9223372036854775808",
        "k x 10 60",
        "k 10 1.5 60",
        "k 10 10 1e3",
        "k 10 10 60 9223372036854775808",
        "k x y z",
    ] {
        let command = format!("throttle {words}");
        let (there, here) = (crab.ask(&command), ask(&mut ours, &command));
        assert!(matches!(there, Reply::Error(_)), "{command}: {there:?}");
        assert_eq!(here, there, "{command}");
    }
}

#[test]
fn an_idle_key_saves_up_no_more_than_its_limit() {
    let Some(mut crab) = Throttlecrab::start() else { return };
    let daemon = Daemon::start("");
    let mut ours = daemon.connect().expect("it accepts");
    let both = |crab: &mut Throttlecrab, ours: &mut Connection<UnixStream>, quantity: u64| {
        let command = format!("THROTTLE idle 100 1 1 {quantity}");
        (five(&crab.ask(&command)), five(&ask(ours, &command)))
    };
    let (there, here) = both(&mut crab, &mut ours, 1);
    assert_eq!(here, there);
    let mut idle = || Some(both(&mut crab, &mut ours, 0)).filter(|(there, _)| there[2] > there[1]);
    let (there, here) = wait_for("throttlecrab has more than the limit left", 20, &mut idle);
    assert_eq!((there[1], here[1], here[2]), (100, 100, 100));
}
