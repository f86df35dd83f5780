//! The store is away, slow, or its replies get lost: answers come in time all the same, within the
//! bounds that the policy chose, and nothing is spent twice.

use crate::support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use rationd::core::key::Digest;
use support::clock::{Watch, wait_for_boundary};
use support::demand::{self, Client, Pace};
use support::ledger::{Ledger, Window};
use support::process::Daemon;
use support::proxy::{Mode, Proxy};
use support::resp::{Connection, Reply};
use support::server::Server;

const LIMIT: u64 = 1000;
const PERIOD: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(150);
/// A lone node's share of the limit.
const SHARE: u64 = LIMIT * 95 / 100;
/// `store.timeout` and what a busy machine adds.
const LATEST_US: u64 = 150_000;

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn daemon(store: &str, policies: &str) -> Daemon {
    Daemon::start(&format!("[store]\nurl = \"{store}\"\ntimeout = \"50ms\"\n{policies}"))
}

const SHARED: &str = "[policy.shared]\nlimits = [\"1000/1s fixed\"]\n";

/// Twice the limit for so many whole windows.
fn load_twice(daemon: &Daemon, windows: u32, meanwhile: impl FnOnce(&Watch)) -> Ledger {
    let client = Client {
        node: 0,
        socket: daemon.socket(),
        policy: "shared".into(),
        key: "k".into(),
        pace: Pace::PerSecond(LIMIT as f64 / 2.0),
    };
    wait_for_boundary(PERIOD, MARGIN);
    demand::run(&vec![client; 4], PERIOD * windows + MARGIN * 2, meanwhile)
}

fn show(name: &str, ledger: &Ledger) -> Vec<Window> {
    let (longest, p99) = ledger.waits_us();
    let windows: Vec<_> = ledger.windows().into_values().collect();
    let sums: Vec<_> = windows.iter().take(12).map(|w| format!("{}+{}", w.lent, w.admitted() - w.lent)).collect();
    let (count, errors, sums) = (ledger.checks.len(), ledger.errors.len(), sums.join(" "));
    writeln!(
        std::io::stderr(),
        "{name:14} checks {count} errors {errors} p99 {p99} us max {longest} us; lent+shared in each window: {sums}"
    )
    .expect("stderr takes a line");
    windows
}

/// What holds whatever the store does: every request answered, in time, without an error, and no
/// window over the limit. This node is alone with its key, so that its share and what it was lent
/// add up to the limit at most: where it spent one, the other shrinks.
fn assert_bounds(ledger: &Ledger) {
    let (longest, _) = ledger.waits_us();
    assert!(ledger.errors.is_empty(), "{:?}", ledger.errors);
    assert_eq!(ledger.unanswered, 0);
    assert!(longest <= LATEST_US, "an answer took {longest} us");
    for (end, window) in ledger.windows() {
        let shared = window.admitted() - window.lent;
        assert!(window.admitted() <= LIMIT, "{} + {shared} admitted in the window until {end}", window.lent);
        assert!(shared <= SHARE, "{shared} admitted on a share of {SHARE} in the window until {end}");
    }
}

/// Away from 2.3 s to 5.3 s of eight windows: two windows lie wholly in the outage.
fn assert_lived_through(name: &str, ledger: &Ledger) {
    let windows = show(name, ledger);
    assert_bounds(ledger);
    let whole = windows.iter().filter(|window| window.lent == 0 && window.admitted() > 0);
    let shares: Vec<_> = whole.map(Window::admitted).collect();
    assert!(shares.len() >= 2, "two windows lay in the outage");
    assert!(shares.iter().take(2).all(|&share| share >= SHARE * 99 / 100), "{shares:?} of {SHARE} were used");
    let last = &ledger.full_windows()[7];
    assert!(last.lent >= LIMIT * 99 / 100 && last.shared.is_empty(), "two seconds after: {last:?}");
}

#[test]
fn goes_on_within_its_share_while_redis_hangs() {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url(), SHARED);
    let ledger = load_twice(&daemon, 8, |watch| {
        watch.pause_until(PERIOD * 2 + MARGIN * 3);
        redis.pause();
        watch.pause_until(PERIOD * 5 + MARGIN * 3);
        redis.resume();
    });
    assert_lived_through("redis hangs", &ledger);
}

#[test]
fn goes_on_within_its_share_while_redis_is_gone() {
    let _turn = alone();
    let mut redis = Server::plain();
    let (port, mut again) = (redis.port, None);
    let daemon = daemon(&redis.url(), SHARED);
    let ledger = load_twice(&daemon, 8, |watch| {
        watch.pause_until(PERIOD * 2 + MARGIN * 3);
        redis.kill();
        watch.pause_until(PERIOD * 5 + MARGIN * 3);
        again = Some(Server::start(|_, _| vec!["--port".to_owned(), port.to_string()]));
    });
    assert!(again.is_some_and(|redis| redis.text("PING") == "PONG"));
    assert_lived_through("redis is gone", &ledger);
}

/// So long Redis is gone, and so many a second pass while it is there.
const LONG: Duration = Duration::from_secs(60);
const FEW: u64 = 20;

/// It asks little, so it runs beside the others.
#[test]
fn goes_on_within_its_share_while_redis_is_gone_for_a_minute() {
    let mut redis = Server::plain();
    let policies = format!("[policy.few]\nlimits = [\"{FEW}/1s fixed\"]\n");
    let daemon = daemon(&redis.url(), &policies);
    let client = Client {
        node: 0,
        socket: daemon.socket(),
        policy: "few".into(),
        key: "k".into(),
        pace: Pace::PerSecond(2.0 * FEW as f64),
    };
    wait_for_boundary(PERIOD, MARGIN);
    let (away, back) = (PERIOD * 2, PERIOD * 2 + LONG);
    let ledger = demand::run(&[client], back + PERIOD * 6 + MARGIN * 2, |watch| {
        watch.pause_until(away);
        redis.kill();
        watch.pause_until(back);
        redis.restart();
    });
    let windows = show("gone for 60 s", &ledger);
    let (longest, _) = ledger.waits_us();
    assert!(ledger.errors.is_empty() && ledger.unanswered == 0, "{:?}", ledger.errors);
    assert!(Duration::from_micros(longest) <= Duration::from_micros(LATEST_US) + ledger.late, "took {longest} us");
    assert!(windows.iter().all(|window| window.admitted() <= FEW), "{windows:?}");
    let share = FEW * 95 / 100;
    let shares: Vec<_> = windows.iter().filter(|window| window.lent == 0).map(Window::admitted).collect();
    let whole = shares.iter().filter(|&&admitted| admitted == share).count() as u64;
    assert!(whole >= LONG.as_secs() - 2, "{whole} windows of {share}: {shares:?}");
    assert!(shares.iter().all(|&admitted| admitted <= share), "{shares:?} on a share of {share}");
    let last = ledger.full_windows().pop().expect("the load has windows");
    assert!(last.lent == FEW && last.shared.is_empty(), "five seconds after Redis is back: {last:?}");
}

/// Listens, and the operating system accepts for it; nobody ever answers.
fn silent_store() -> (TcpListener, String) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
    (listener, url)
}

#[test]
fn starts_on_its_share_when_the_store_never_answered() {
    let _turn = alone();
    let (_listener, url) = silent_store();
    let daemon = daemon(&url, SHARED);
    let ledger = load_twice(&daemon, 3, |_| {});
    show("never answers", &ledger);
    assert_bounds(&ledger);
    let full = ledger.full_windows();
    assert_eq!(full.len(), 3, "replies name one end for each of three windows");
    assert!(full.iter().all(|window| window.lent == 0 && window.admitted() >= SHARE * 99 / 100), "{full:?}");
}

#[test]
fn policy_chooses_what_happens_without_a_store() {
    let _turn = alone();
    let (_listener, url) = silent_store();
    let daemon = daemon(
        &url,
        "[policy.open]\nlimits = [\"1/1h fixed\"]\non_store_loss = \"allow\"\n\
         [policy.shut]\nlimits = [\"100/1h fixed\"]\non_store_loss = \"deny\"\n",
    );
    let mut connection = daemon.connect().expect("the daemon accepts");
    for _ in 0..20 {
        let watch = Watch::start();
        let open = connection.ask_text("RATION.CHECK open k").expect("an answer");
        let shut = connection.ask_text("RATION.CHECK shut k").expect("an answer");
        assert!(watch.elapsed() < Duration::from_micros(2 * LATEST_US), "{:?}", watch.elapsed());
        assert_eq!(open.items()[0], Reply::Int(0), "{open:?}");
        assert_eq!(shut.items()[0], Reply::Int(1), "{shut:?}");
        assert_eq!(shut.items()[7].text(), "store", "{shut:?}");
    }
}

/// What Redis holds as lent of the first limit of a key.
fn stored_used(redis: &mut Connection<TcpStream>, policy: &str, key: &str) -> i64 {
    let hash = format!("ration:{{{}}}", Digest::of(policy, key.as_bytes()));
    match redis.ask(&[b"HGET", hash.as_bytes(), b"f1"]).expect("redis answers") {
        Reply::Nil => 0,
        counter => counter.text().split(' ').next().and_then(|used| used.parse().ok()).expect("used prev at"),
    }
}

#[test]
fn lost_reply_is_never_spent_twice() {
    const KEYS: usize = 100;
    const ROUNDS: usize = 30;
    /// A machine that is busy opens the breaker more often, and fewer replies come to be cut.
    const MOST_ROUNDS: usize = 1_000;
    let _turn = alone();
    let redis = Server::plain();
    let proxy = Proxy::start(([127, 0, 0, 1], redis.port).into());
    let mut daemon = daemon(&format!("redis://{}", proxy.address()), "[policy.long]\nlimits = [\"20/1d fixed\"]\n");
    let mut connection = daemon.connect().expect("the daemon accepts");
    let mut lent = vec![0; KEYS];
    let mut allowed = vec![0; KEYS];
    proxy.set(Mode::CutEvery(4));
    for _ in (0..MOST_ROUNDS).take_while(|round| *round < ROUNDS || proxy.spoiled() < 10) {
        for key in 0..KEYS {
            let reply = connection.ask_text(&format!("RATION.CHECK long key{key}")).expect("an answer");
            let fields = reply.items();
            if fields[0] == Reply::Int(0) {
                allowed[key] += 1;
                lent[key] += i64::from(fields[9].text() != "share");
            }
        }
    }
    assert!(proxy.spoiled() >= 10, "only {} replies were cut", proxy.spoiled());
    proxy.set(Mode::Pass);
    assert!(daemon.terminate().success(), "{}", daemon.log());
    let mut redis = Connection::new(TcpStream::connect(("127.0.0.1", redis.port)).expect("redis accepts"));
    let (mut stored_sum, mut lent_sum) = (0, 0);
    for key in 0..KEYS {
        let used = stored_used(&mut redis, "long", &format!("key{key}"));
        assert!(lent[key] <= used && used <= 20, "key{key}: {} spent of {used} lent, of 20", lent[key]);
        assert!(allowed[key] <= 20 + 19, "key{key}: {} allowed", allowed[key]);
        stored_sum += used;
        lent_sum += lent[key];
    }
    let cut = proxy.spoiled();
    writeln!(std::io::stderr(), "replies cut {cut}: {stored_sum} lent, {lent_sum} spent").expect("stderr takes a line");
}

#[test]
fn late_reply_is_never_spent_twice() {
    let _turn = alone();
    let redis = Server::plain();
    let proxy = Proxy::start(([127, 0, 0, 1], redis.port).into());
    let daemon = daemon(&format!("redis://{}", proxy.address()), SHARED);
    let ledger = load_twice(&daemon, 5, |watch| {
        watch.pause_until(PERIOD);
        proxy.set(Mode::DelayEvery(4, Duration::from_millis(80)));
    });
    show("late replies", &ledger);
    assert!(proxy.spoiled() >= 3, "only {} replies were late", proxy.spoiled());
    assert_bounds(&ledger);
}
