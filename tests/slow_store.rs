//! Slow is not lost: a store that stands still for a moment, that is far away, or that has more to do than it can.
//! Answers come in time; nobody is sent away for long because of one reply; a denied check charges nothing; what
//! was asked for too late serves the next; and no share is opened while the store is there.
//!
//! Beside `store.timeout` (50 ms) an answer may take what two busy cores need to run everybody: 100 ms, and as much
//! as the test's own clients were late.

use crate::support;

use std::os::unix::net::UnixStream;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use support::clock::{Watch, wait_for_boundary};
use support::demand::{self, Client, Pace};
use support::goals;
use support::ledger::Check;
use support::poll::{wait_for, wait_until};
use support::process::Daemon;
use support::proxy::Proxy;
use support::resp::{Connection, Reply};
use support::served::{
    LATEST, LIMIT, MARGIN, PERIOD, assert_all_in_time, assert_bucket_holds, assert_few_shared, assert_nobody_shared,
    assert_none_over, assert_served, print,
};
use support::server::Server;

/// What a check that was turned away for want of an answer may be told to wait.
const LONGEST_RETRY_MS: i64 = 1_000;

const POLICIES: &str = "
[policy.login]
limits = [\"5/1h\"]
[policy.quota]
limits = [\"10/366d fixed\"]
[policy.first]
limits = [\"6/1d fixed from-first\"]
[policy.slide]
limits = [\"8/366d sliding\"]
[policy.both]
limits = [\"7/1h\", \"9/366d fixed\"]
[policy.hot]
limits = [\"1000/1s fixed\"]
[policy.bucket]
limits = [\"1000/1s\"]
";

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn daemon(url: &str) -> Daemon {
    Daemon::start(&format!("[store]\nurl = \"{url}\"\n{POLICIES}"))
}

/// A key that nobody has asked for, how it is asked, and what its limit lends at once.
struct Fresh {
    check: String,
    peek: String,
    cost: u64,
    capacity: u64,
}

impl Fresh {
    fn all(round: usize) -> Vec<Self> {
        let of = |policy: &str, capacity| Self {
            check: format!("RATION.CHECK {policy} fresh{round}"),
            peek: format!("RATION.CHECK {policy} fresh{round} PEEK"),
            cost: 1,
            capacity,
        };
        let throttle = format!("CL.THROTTLE fresh{round} 883 10 86400");
        let thrice = Self { check: format!("{throttle} 294"), peek: format!("{throttle} 0"), cost: 294, capacity: 884 };
        vec![of("login", 5), of("quota", 10), of("first", 6), of("slide", 8), of("both", 7), thrice]
    }
}

/// One answer to a check of a fresh key.
#[derive(Debug)]
struct Answered {
    took: Duration,
    reply: Reply,
}

impl Answered {
    fn ask(connection: &mut Connection<UnixStream>, command: &str) -> Self {
        let watch = Watch::start();
        let reply = connection.ask_text(command).unwrap_or_else(|error| panic!("{command}: {error}"));
        Self { took: watch.elapsed(), reply }
    }

    fn field(&self, index: usize) -> i64 {
        self.reply.items()[index].int()
    }

    fn is_denied(&self) -> bool {
        self.field(0) == 1
    }

    /// `CL.THROTTLE` tells none.
    fn word(&self, index: usize) -> Option<String> {
        self.reply.items().get(index).map(Reply::text)
    }

    fn retry_ms(&self) -> i64 {
        if self.reply.items().len() > 5 { self.field(5) } else { (self.field(3) - 1).max(0) * 1_000 }
    }
}

/// Redis stands still for so long while fresh keys are asked for again and again: their answers.
fn stall(redis: &Server, daemon: &Daemon, keys: &[Fresh], length: Duration) -> Vec<Vec<Answered>> {
    let begin = Barrier::new(keys.len() + 1);
    thread::scope(|scope| {
        let asking: Vec<_> = keys
            .iter()
            .map(|key| {
                let mut connection = daemon.connect().expect("the daemon accepts");
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    let (watch, mut told) = (Watch::start(), Vec::new());
                    while watch.elapsed() + Duration::from_millis(60) < length {
                        told.push(Answered::ask(&mut connection, &key.check));
                        watch.pause_until(Duration::from_millis(60) * u32::try_from(told.len()).expect("few"));
                    }
                    told
                })
            })
            .collect();
        redis.pause();
        let watch = Watch::start();
        begin.wait();
        watch.pause_until(length);
        redis.resume();
        asking.into_iter().map(|one| one.join().expect("a client ended by itself")).collect()
    })
}

/// Until a key that nobody knows is lent of the store again.
fn wait_for_the_store(daemon: &Daemon, name: &str) {
    let mut probe = 0;
    wait_until("the store is asked again", 10, || {
        probe += 1;
        let told = daemon.ask(&format!("RATION.CHECK quota {name}-{probe}"));
        told.items()[0] == Reply::Int(0) && told.items()[9].text() == "store"
    });
}

/// What holds of every stall: in time, nothing charged that was denied, nothing over.
fn assert_nothing_is_lost(daemon: &Daemon, keys: &[Fresh], told: &[Vec<Answered>]) {
    let mut connection = daemon.connect().expect("the daemon accepts");
    for (key, told) in keys.iter().zip(told) {
        let mut admitted = told.iter().filter(|told| !told.is_denied()).count() as u64;
        wait_for(&format!("{}: {admitted} admitted, the rest is left", key.check), 10, || {
            let peek = Answered::ask(&mut connection, &key.peek);
            let left = u64::try_from(peek.field(2)).expect("a count");
            let wanted = key.capacity - (admitted * key.cost).min(key.capacity);
            (left == wanted).then_some(())
        });
        // After an outage nothing is lent for a second.
        let whole = key.capacity / key.cost;
        wait_until(&format!("{}: all is admitted in the end", key.check), 10, || {
            admitted += u64::from(!Answered::ask(&mut connection, &key.check).is_denied());
            admitted >= whole
        });
        admitted +=
            (0..key.capacity).filter(|_| !Answered::ask(&mut connection, &key.check).is_denied()).count() as u64;
        assert_eq!(admitted, whole, "{}: {told:?}", key.check);
    }
}

fn assert_in_time(told: &[Vec<Answered>]) {
    let longest = told.iter().flatten().max_by_key(|told| told.took).expect("some were asked");
    assert!(longest.took <= LATEST, "{longest:?}");
}

/// A stall that is shorter than what is taken for an outage.
fn short_stalls(length: Duration) {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url());
    let (mut denied, mut sources) = (0, Vec::new());
    for round in 0..4 {
        wait_for_the_store(&daemon, &format!("before{round}"));
        let keys = Fresh::all(round);
        let told = stall(&redis, &daemon, &keys, length);
        assert_in_time(&told);
        for one in told.iter().flatten().filter(|told| told.is_denied()) {
            denied += 1;
            let reason = one.word(7).unwrap_or_else(|| "overload".to_owned());
            assert_eq!(reason, "overload", "the store is there: {one:?}");
            assert!(one.retry_ms() <= LONGEST_RETRY_MS, "sent away for long: {one:?}");
        }
        wait_for_the_store(&daemon, &format!("after{round}"));
        // What came too late for them is there for the next.
        let next = Answered::ask(&mut daemon.connect().expect("the daemon accepts"), &keys[1].check);
        assert!(!next.is_denied(), "{next:?}");
        // Unless somebody who still waited when it came has it.
        let is_there = told[1].iter().all(Answered::is_denied);
        sources.extend(is_there.then(|| next.word(9).unwrap_or_default()));
        let mut told = told;
        told[1].push(next);
        assert_nothing_is_lost(&daemon, &keys, &told);
    }
    print(&format!("redis stands still for {length:?}: {denied} checks of fresh keys denied, all for a moment"));
    assert!(
        sources.iter().all(|source| source == "lease"),
        "the next check is answered from what came late: {sources:?}"
    );
}

/// Its socket is there only when its store is: it would decide a check that came before alone, and deny this one.
#[test]
fn first_check_after_a_start_is_decided_by_the_store() {
    let redis = Server::plain();
    let proxy = Proxy::far(([127, 0, 0, 1], redis.port).into(), Duration::from_millis(80));
    let daemon =
        Daemon::start(&format!("[store]\nurl = \"redis://{}\"\ntimeout = \"2s\"\n{POLICIES}", proxy.address()));
    let told = daemon.ask("RATION.CHECK quota first COST 10");
    assert_eq!((told.items()[0].int(), told.items()[7].text().as_str()), (0, "ok"), "{told:?}");
}

#[test]
fn stall_of_150_ms_sends_nobody_away_for_long() {
    short_stalls(Duration::from_millis(150));
}

#[test]
fn stall_of_400_ms_sends_nobody_away_for_long() {
    short_stalls(Duration::from_millis(400));
}

#[test]
fn stall_of_3_s_charges_nothing_that_was_denied() {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url());
    wait_for_the_store(&daemon, "before");
    let keys = Fresh::all(0);
    let told = stall(&redis, &daemon, &keys, Duration::from_secs(3));
    assert_in_time(&told);
    for (key, told) in keys.iter().zip(&told) {
        let admitted = told.iter().filter(|told| !told.is_denied()).count() as u64;
        print(&format!("redis stands still for 3 s: {}: {admitted} of {} admitted", key.check, told.len()));
        assert!(admitted * key.cost <= key.capacity, "{}: {told:?}", key.check);
    }
    wait_for_the_store(&daemon, "after");
    assert_nothing_is_lost(&daemon, &keys, &told);
}

fn clients(daemon: &Daemon, node: u8, policy: &str, key: &str) -> Vec<Client> {
    let client = Client {
        node,
        socket: daemon.socket(),
        policy: policy.into(),
        key: key.into(),
        pace: Pace::PerSecond(LIMIT as f64),
    };
    vec![client; 2]
}

#[test]
fn short_stalls_under_load_open_no_share() {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url());
    for (policy, is_bucket) in [("hot", false), ("bucket", true)] {
        wait_for_boundary(PERIOD, MARGIN);
        let ledger = demand::run(&clients(&daemon, 0, policy, "k"), PERIOD * 7 + MARGIN * 2, |watch| {
            for (at, length) in [(1_000, 150), (1_900, 150), (2_800, 150), (3_700, 400), (5_000, 400), (6_100, 400)] {
                watch.pause_until(Duration::from_millis(at));
                redis.pause();
                watch.pause_until(Duration::from_millis(at + length));
                redis.resume();
            }
        });
        assert_served(policy, &ledger, LATEST);
        if is_bucket {
            assert_bucket_holds(policy, &ledger, Duration::from_millis(400));
        } else {
            assert_none_over(policy, &ledger);
        }
    }
}

/// A check waits for 50 ms, and an answer takes 160: until the first leases are there most checks are turned away.
#[test]
fn zone_80_ms_away_lives_on_leases() {
    let _turn = alone();
    let redis = Server::plain();
    let proxy = Proxy::far(([127, 0, 0, 1], redis.port).into(), Duration::from_millis(80));
    let (near, far) = (daemon(&redis.url()), daemon(&format!("redis://{}", proxy.address())));
    let both = |policy: &str, key: &str| [clients(&near, 0, policy, key), clients(&far, 1, policy, key)].concat();
    let runs = [
        ("far alone", clients(&far, 1, "hot", "far")),
        ("near and far", both("hot", "both")),
        ("far alone, a bucket", clients(&far, 1, "bucket", "far")),
        ("near and far, a bucket", both("bucket", "both")),
    ];
    for (name, clients) in runs {
        wait_for_boundary(PERIOD, MARGIN);
        let ledger = demand::run(&clients, PERIOD * 5 + MARGIN * 2, |_| {});
        assert_all_in_time(name, &ledger, LATEST);
        if name.ends_with("bucket") {
            assert_few_shared(name, &ledger, 2);
            assert_bucket_holds(name, &ledger, Duration::from_millis(160));
            continue;
        }
        assert_nobody_shared(name, &ledger);
        assert_none_over(name, &ledger);
        let windows: Vec<_> = ledger.windows().values().map(|window| window.admitted()).collect();
        let used = ledger.utilisation_after(1, LIMIT);
        let seen = format!("{name} {:.1} %, of all that were seen {windows:?}", 100.0 * used);
        goals::judge("99 % of full windows after the first are used", seen, used >= 0.99);
    }
}

/// Half of the limit is asked for, 80 ms away: once the first leases are there, everybody is served from them.
#[test]
fn zone_80_ms_away_denies_nobody_below_the_limit() {
    let _turn = alone();
    let redis = Server::plain();
    let proxy = Proxy::far(([127, 0, 0, 1], redis.port).into(), Duration::from_millis(80));
    let far = daemon(&format!("redis://{}", proxy.address()));
    for policy in ["hot", "bucket"] {
        let half = |client: Client| Client { pace: Pace::PerSecond(LIMIT as f64 / 4.0), ..client };
        let clients: Vec<_> = clients(&far, 0, policy, "half").into_iter().map(half).collect();
        wait_for_boundary(PERIOD, MARGIN);
        let ledger = demand::run(&clients, PERIOD * 4 + MARGIN * 2, |_| {});
        assert_all_in_time(policy, &ledger, LATEST);
        assert_few_shared(policy, &ledger, 1);
        let begun = ledger.checks.iter().map(|check| check.sent_us).min().expect("checks");
        let since = |us: u128| u64::try_from(us).expect("a few seconds") + begun;
        let learnt = since((PERIOD + MARGIN).as_micros());
        let denied = |is_late: bool| {
            let of = |check: &&Check| !check.answer.allowed && (check.sent_us >= learnt) == is_late;
            ledger.checks.iter().filter(of).count()
        };
        let (early, late) = (denied(false), denied(true));
        let seen = format!("{policy}: {early} in the first second, {late} in three more");
        goals::judge("nobody is denied below the limit after the first second", seen, late == 0);
    }
}
