//! Daemons whose clocks are wrong: processes of their own, on a real Redis, to which libfaketime (Debian's package
//! `libfaketime`) tells another time. One clock runs 200 ppm fast, one as much slow, and one is set forward by a day and
//! back by an hour while it is asked. Limits count by the store's clock, so nothing goes over and nothing is lost.
//! Where the library cannot be had, the test says that it is skipped.

use crate::support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use support::clock::{Watch, wait_for_boundary};
use support::demand::{self, Client, Pace};
use support::process::Daemon;
use support::served::{LATEST, LIMIT, MARGIN, PERIOD, assert_bucket_holds, assert_none_over, assert_served};
use support::server::{Place, Server};
use support::skip::skipped;

/// Where Debian has it.
fn library() -> String {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH)
}

/// A daemon with this clock.
fn daemon(url: &str, clock: &[String]) -> Daemon {
    let library = format!("LD_PRELOAD={}", library());
    let way = ["env".to_owned(), library].into_iter().chain(clock.iter().cloned()).collect();
    let policies =
        format!("[policy.hot]\nlimits = [\"{LIMIT}/1s fixed\"]\n[policy.bucket]\nlimits = [\"{LIMIT}/1s\"]\n");
    let place = Place { way, ..Place::here() };
    Daemon::start_at(&place, &format!("[store]\nurl = \"{url}\"\n{policies}"))
}

fn set(file: &Path, offset: &str) {
    // Another file in its place: a reader must not see it half.
    let next = file.with_extension("next");
    fs::write(&next, offset).expect("a file");
    fs::rename(&next, file).expect("it is ours");
}

#[test]
fn daemons_whose_clocks_drift_and_jump_keep_the_limit() {
    let library = library();
    if !Path::new(&library).exists() {
        return skipped("clocks", &format!("no {library}: apt-get install libfaketime"), &library);
    }
    let (redis, directory) = (Server::plain(), tempfile::tempdir().expect("a directory"));
    let file = directory.path().join("offset");
    set(&file, "+0");
    let drifts = |rate: &str| vec![format!("FAKETIME=+0 x{rate}")];
    // Nobody can set a monotonic clock; the other one is read from the file each time.
    let jumps = vec![
        format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
    ];
    let daemons = [drifts("1.0002"), drifts("0.9998"), jumps].map(|clock| daemon(&redis.url(), &clock));
    for (policy, is_bucket) in [("hot", false), ("bucket", true)] {
        let client = |(node, daemon): (usize, &Daemon)| Client {
            node: node as u8,
            socket: daemon.socket(),
            policy: policy.into(),
            key: "k".into(),
            pace: Pace::PerSecond(0.6 * LIMIT as f64),
        };
        let clients: Vec<_> = daemons.iter().enumerate().map(client).collect();
        wait_for_boundary(PERIOD, MARGIN);
        let ledger = demand::run(&clients, PERIOD * 6 + MARGIN * 2, |watch: &Watch| {
            for (at, offset) in [(1_500, "+86400"), (3_500, "-3600"), (5_500, "+0")] {
                watch.pause_until(Duration::from_millis(at));
                set(&file, offset);
            }
        });
        let name = format!("clocks that drift and jump, {policy}");
        assert_served(&name, &ledger, LATEST);
        if is_bucket {
            assert_bucket_holds(&name, &ledger, Duration::from_millis(50));
        } else {
            assert_none_over(&name, &ledger);
            assert!(ledger.utilisation(LIMIT) >= 0.95, "{name}: {:.3} of full windows", ledger.utilisation(LIMIT));
        }
    }
}
