//! Starting and stopping: who may take a path, what is handed over, and that nobody is refused meanwhile.
//!
//! RATIOND_RESTARTS: how often a daemon under an activated socket is replaced (12 by default; 100 take six seconds).

use crate::support;

use std::io::Write;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use support::clock::Watch;
use support::poll::{wait_for, wait_until};
use support::process::{Daemon, signal, without_settings};
use support::resp::Connection;

const POLICIES: &str = "[policy.api]\nlimits = [\"1000000/1h\"]\n";

/// A configuration in a directory of its own.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new(listen: &str) -> Self {
        let place = Self { directory: tempfile::tempdir().expect("a directory") };
        let text = format!("[listen]\nsocket = {:?}\nadmin = \"off\"\n{listen}{POLICIES}", place.socket());
        std::fs::write(place.path("rationd.toml"), text).expect("a file");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("rationd.sock")
    }

    /// `rationd serve`, begun by a shell that does `before` and then becomes it.
    fn command(&self, before: &str) -> Command {
        let mut command = Command::new("sh");
        without_settings(&mut command);
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).expect("a log");
        command.arg("-c").arg(format!("{before} exec \"$0\" -c \"$1\" serve"));
        command.arg(env!("CARGO_BIN_EXE_rationd")).arg(self.path("rationd.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    fn start(&self, before: &str) -> Process {
        Process(self.command(before).spawn().expect("there is a shell"))
    }

    /// The same with a listening socket, as systemd hands it over: descriptor 3.
    fn start_with(&self, listener: &UnixListener) -> Process {
        let mut command = self.command("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1");
        let handle = listener.try_clone().expect("a descriptor");
        Process(command.stdin(std::os::fd::OwnedFd::from(handle)).spawn().expect("there is a shell"))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

struct Process(Child);

impl Process {
    fn leaves(&mut self, seconds: u64) -> i32 {
        let status = wait_for("it ends", seconds, || self.0.try_wait().expect("it is our child"));
        status.code().unwrap_or(-1)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(path: &Path) -> std::io::Result<Connection<UnixStream>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(Connection::new(stream))
}

/// Its queue takes no more, and it will never answer. It holds no lock of ours: it is another program.
#[test]
fn one_that_stands_still_with_a_full_queue_keeps_nobody_waiting() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let place = Place::new("");
    let socket = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a descriptor")
    };
    let (still, address) = (socket(), SocketAddrUnix::new(place.socket()).expect("a short path"));
    bind(&still, &address).expect("there is room");
    listen(&still, 1).expect("it is bound");
    let waiting: Vec<_> =
        std::iter::repeat_with(socket).take_while(|client| connect(client, &address).is_ok()).collect();
    assert!(!waiting.is_empty() && waiting.len() < 100, "{} wait", waiting.len());
    assert_eq!(place.start("").leaves(10), 71, "{}", place.log());
    assert!(place.log().contains("already listens"), "{}", place.log());
}

#[test]
fn a_stopping_daemon_leaves_anothers_file_alone() {
    let place = Place::new("");
    let mut old = place.start("");
    wait_for("it listens", 20, || connect(&place.socket()).ok());
    std::fs::remove_file(place.socket()).expect("it is there");
    let other = UnixListener::bind(place.socket()).expect("there is room");
    signal(old.0.id(), "TERM");
    assert_eq!(old.leaves(10), 0);
    assert!(UnixStream::connect(place.socket()).is_ok(), "its file is gone");
    drop(other);
}

#[test]
fn a_socket_that_was_handed_over_must_be_a_configured_one() {
    let place = Place::new("");
    let elsewhere = UnixListener::bind(place.path("other.sock")).expect("there is room");
    assert_eq!(place.start_with(&elsewhere).leaves(20), 71);
    assert!(place.log().contains("other.sock: it is none of listen.socket"), "{}", place.log());
    assert!(!place.socket().exists(), "nobody listens");
}

/// "path must be shorter than SUN_LEN" and "Permission denied" alone say neither what was wanted nor what to do.
#[test]
fn a_socket_that_cannot_be_made_is_told_with_what_to_do() {
    let files = tempfile::tempdir().expect("a directory");
    let long = files.path().join("x".repeat(110));
    for (path, parts) in [
        (long, &["may have 99", "--socket"][..]),
        ("/proc/rationd.sock".into(), &["cannot lock /proc/rationd.sock", "write its directory", "--socket"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        let output =
            command.arg("--socket").arg(&path).args(["serve", "--admin", "off"]).output().expect("it is built");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(parts.iter().all(|part| told.contains(part)), "{path:?}: {output:?}");
        assert_eq!(output.status.code(), Some(71), "{output:?}");
    }
}

/// 10,000 checks a second, and 0 refused.
#[test]
fn restarts_under_an_activated_socket_refuse_nobody() {
    const CLIENTS: u64 = 4;
    const RATE: u64 = 10_000;
    let restarts: u64 = std::env::var("RATIOND_RESTARTS").map_or(12, |text| text.parse().expect("a number"));
    let place = Place::new("");
    let listener = UnixListener::bind(place.socket()).expect("there is room");
    let (stop, answered, refused, broken) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (place, stop, answered, refused, broken) = (&place, &stop, &answered, &refused, &broken);
            scope.spawn(move || {
                let (watch, mut asked, mut connection) = (Watch::start(), 0, None);
                while !stop.load(Ordering::Relaxed) {
                    if connection.is_none() {
                        match connect(&place.socket()) {
                            Ok(opened) => connection = Some(opened),
                            Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                    let reply = connection.as_mut().map(|open| open.ask_text(&format!("RATION.CHECK api c{client}")));
                    match reply {
                        Some(Ok(_)) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        // Closed by a daemon that leaves: who asks again is heard by the next one.
                        Some(Err(_)) => {
                            broken.fetch_add(1, Ordering::Relaxed);
                            connection = None;
                        }
                        None => {}
                    }
                    asked += 1;
                    watch.pause_until(Duration::from_micros(asked * 1_000_000 * CLIENTS / RATE));
                }
            });
        }
        let watch = Watch::start();
        for _ in 0..restarts {
            let before = answered.load(Ordering::Relaxed);
            let mut daemon = place.start_with(&listener);
            wait_until("it answers", 30, || answered.load(Ordering::Relaxed) > before + 500);
            signal(daemon.0.id(), "TERM");
            assert_eq!(daemon.leaves(10), 0, "{}", place.log());
        }
        let last = place.start_with(&listener);
        let before = answered.load(Ordering::Relaxed);
        wait_until("the last one answers", 30, || answered.load(Ordering::Relaxed) > before + 500);
        stop.store(true, Ordering::Relaxed);
        let (answered, broken) = (answered.load(Ordering::Relaxed), broken.load(Ordering::Relaxed));
        let took = watch.elapsed();
        eprintln!("{restarts} restarts in {took:?}: {answered} answers, {broken} asked again");
        // Whoever waits for an answer here is answered by the last one, or its end ends the wait.
        drop(last);
    });
    assert_eq!(refused.load(Ordering::Relaxed), 0);
    assert!(place.socket().exists(), "the file is its owner's");
}

#[test]
fn the_limit_of_open_files_is_raised_or_connections_are_fitted_to_it() {
    let place = Place::new("max_connections = 900\nmax_connections_per_uid = 900\nthreads = 1\n");
    let _daemon = place.start("ulimit -Sn 200;");
    wait_for("it listens", 20, || connect(&place.socket()).ok());
    let held: Vec<_> = (0..600).map(|_| UnixStream::connect(place.socket()).expect("it accepts")).collect();
    wait_until("all of them are in", 20, || {
        let mut one_more = connect(&place.socket()).expect("it accepts");
        one_more.ask_text("INFO").expect("an answer").text().contains(&format!("connected_clients:{}", held.len() + 1))
    });
    drop(held);

    let small = Place::new("max_connections = 900\nthreads = 1\n");
    let _daemon = small.start("ulimit -Sn 200; ulimit -Hn 300;");
    wait_for("it listens", 20, || connect(&small.socket()).ok());
    let told = |word: &str| small.log().contains(word);
    wait_until("the log says how many fit", 20, || {
        told("fewer connections than listen.max_connections") && told("150")
    });
    // Whoever is beyond it is told so, and health and the store have what they need.
    let mut held: Vec<_> = (0..150).map(|_| UnixStream::connect(small.socket()).expect("it accepts")).collect();
    wait_until("the last one is told that there are too many", 20, || {
        let mut last = connect(&small.socket()).expect("it accepts");
        matches!(last.ask_text("PING"), Ok(reply) if reply.text().contains("max number of clients"))
    });
    held[0].write_all(b"PING\r\n").expect("it is in");
}

#[test]
fn a_service_manager_hears_of_start_life_and_end() {
    let place = Place::new("");
    let heard = UnixDatagram::bind(place.path("notify")).expect("there is room");
    heard.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let next = || {
        let mut text = [0; 256];
        let len = heard.recv(&mut text).expect("it tells");
        String::from_utf8_lossy(&text[..len]).trim().to_owned()
    };
    let notify = place.path("notify");
    let mut daemon =
        place.start(&format!("export NOTIFY_SOCKET={} WATCHDOG_USEC=100000 WATCHDOG_PID=$$;", notify.display()));
    assert_eq!(next(), "READY=1");
    connect(&place.socket()).expect("it listens by then");
    assert_eq!([next(), next(), next()], ["WATCHDOG=1"; 3]);
    signal(daemon.0.id(), "TERM");
    wait_until("it says that it leaves", 10, || next() == "STOPPING=1");
    assert_eq!(daemon.leaves(10), 0);
}

#[test]
fn a_daemon_that_was_killed_leaves_nothing_that_keeps_the_next_from_starting() {
    let mut daemon = Daemon::start(POLICIES);
    assert!(daemon.socket().exists());
    daemon.kill();
    assert!(daemon.socket().exists(), "nobody took it away");
    daemon.restart();
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(!daemon.socket().exists());
}
