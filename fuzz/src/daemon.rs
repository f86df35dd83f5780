//! One daemon in this process for all inputs: what a client would talk to, over its sockets.
//!
//! It keeps few keys, so that what it holds is bounded soon.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use rationd::config::ListenAddress;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::route::{RouteSet, RouteSpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::envoy::EnvoyOptions;
use rationd::serve::{Backend, Daemon, Limits, StartOptions};
use rationd::wire::headers::Style;

/// A silence so long is a hang, on the slowest of machines.
const HANGS: Duration = Duration::from_secs(120);

/// Most keys that it knows.
const KEYS: usize = 1_000;

/// Where the daemon is.
#[derive(Debug)]
pub struct Served {
    /// Its socket.
    pub socket: PathBuf,
    /// Envoy's door.
    pub door: PathBuf,
    directory: PathBuf,
    _daemon: Daemon,
    _runtime: tokio::runtime::Runtime,
}

static SERVED: OnceLock<Served> = OnceLock::new();

/// The daemon, which is started when it is asked for first.
pub fn served() -> &'static Served {
    SERVED.get_or_init(start)
}

/// Takes away what the daemon has on disk.
pub fn end() {
    if let Some(served) = SERVED.get() {
        let _ = std::fs::remove_dir_all(&served.directory);
    }
}

fn start() -> Served {
    let directory = tempfile::tempdir().expect("a directory for the sockets").keep();
    let (socket, door) = (directory.join("rationd.sock"), directory.join("rls.sock"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a control runtime");
    let options = StartOptions {
        clock: rationd::clock::Clock::start(),
        socket: socket.clone(),
        mode: 0o600,
        group: None,
        envoy: Some(EnvoyOptions { address: ListenAddress::Path(door.clone()), headers: Some(Style::Draft) }),
        tcp: None,
        remote: Arc::default(),
        limits: Limits { held: 1 << 20, ..Limits::default() },
        threads: 1,
        store: Backend::Memory,
        policies: Arc::new(ArcSwap::from_pointee(policies())),
        in_fleet: false,
        settings: Settings { max_keys: KEYS, timeout: Micros::from_millis(50), lease_ahead: false },
        digests: rationd::core::key::DigestKey::default(),
        reload: None,
    };
    let daemon = {
        let _inside = runtime.enter();
        Daemon::start(options).expect("the daemon starts")
    };
    Served { socket, door, directory, _daemon: daemon, _runtime: runtime }
}

fn policies() -> PolicySet {
    let limited = |limits: &[&str]| PolicySpec {
        limits: limits.iter().map(|&l| l.to_owned()).collect(),
        ..PolicySpec::default()
    };
    let mut api = limited(&["100/1h", "5/1h fixed"]);
    api.overrides.insert("evil".into(), PolicySpec { blocked: true, ..PolicySpec::default() });
    let specs = BTreeMap::from([
        ("api".to_owned(), api),
        ("busy".to_owned(), limited(&["3/30s concurrent"])),
        ("watched".to_owned(), PolicySpec { shadow: true, ..limited(&["1/1h sliding"]) }),
        ("free".to_owned(), PolicySpec { unlimited: true, ..PolicySpec::default() }),
    ]);
    let route = |patterns: &[&str], policy: &str| RouteSpec {
        patterns: patterns.iter().map(|&text| text.to_owned()).collect(),
        policy: (!policy.is_empty()).then(|| policy.to_owned()),
        ..RouteSpec::default()
    };
    let routes = vec![
        route(&["user=nobody", "..."], ""),
        route(&["user"], "api"),
        route(&["watched"], "watched"),
        RouteSpec { replaces: vec!["api".into()], ..route(&["user", "plan=gold"], "free") },
    ];
    let routes = RouteSet::compile(&BTreeMap::from([("edge".to_owned(), routes)]), |_| None);
    PolicySet::compile(&specs).expect("the policies are right").with_routes(routes.expect("the routes are right"))
}

/// Everything that is answered to these pieces, one write each, when nothing follows them.
pub fn talk(path: &Path, pieces: &[&[u8]]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).expect("the daemon listens");
    stream.set_read_timeout(Some(HANGS)).expect("a timeout can be set");
    stream.set_write_timeout(Some(HANGS)).expect("a timeout can be set");
    for piece in pieces {
        // It may have closed already: nothing more is understood after an error of the protocol.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut told = Vec::new();
    match stream.read_to_end(&mut told) {
        Ok(_) => {}
        // What it did not read.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the daemon does not end the connection: {error}"),
    }
    told
}
