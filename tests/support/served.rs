//! What holds of every load while the store is there, however slow it or the daemon is: figures for the reader, and
//! the promises that need no quiet machine.
//!
//! Beside `store.timeout` (50 ms) an answer may take what two busy cores need to run everybody: 100 ms, and as much
//! as the test's own clients were late.

use std::io::Write;
use std::time::Duration;

use super::ledger::Ledger;

/// `store.timeout` and what a busy machine adds.
pub const LATEST: Duration = Duration::from_millis(150);
/// The limit that is loaded.
pub const LIMIT: u64 = 1000;
pub const PERIOD: Duration = Duration::from_secs(1);
/// A load begins this long before a window does and ends as long after one.
pub const MARGIN: Duration = Duration::from_millis(150);

/// A line for the reader.
pub fn print(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
}

/// Everybody was answered, in time, and nobody by a share.
pub fn assert_served(name: &str, ledger: &Ledger, latest: Duration) {
    assert_nobody_shared(name, ledger);
    assert_all_in_time(name, ledger, latest);
}

/// Everybody was answered, and in time.
pub fn assert_all_in_time(name: &str, ledger: &Ledger, latest: Duration) {
    assert_eq!(ledger.unanswered, 0);
    let longest = ledger.waits_us().0;
    assert!(Duration::from_micros(longest) <= latest + ledger.late, "{name}: an answer took {longest} us");
}

/// Nobody was answered by a share or an error.
pub fn assert_nobody_shared(name: &str, ledger: &Ledger) {
    assert_few_shared(name, ledger, 0);
}

/// So many were answered by a share at most, and nobody by an error. The first check of a bucket that nobody has spent
/// of passes on credit on each node whose answer is late.
pub fn assert_few_shared(name: &str, ledger: &Ledger, most: usize) {
    let (longest, p99) = ledger.waits_us();
    let count = |reason| ledger.count_reason(reason);
    let (shared, overload, rate) = (ledger.count_source("share"), count("overload"), count("rate"));
    print(&format!(
        "{name}: {} checks, p99 {p99} us, longest {longest} us; by a share {shared}, overload {overload}, rate {rate}",
        ledger.checks.len(),
    ));
    assert!(ledger.errors.is_empty(), "{:?}", ledger.errors);
    assert!(shared <= most, "{name}: the store was there, and {shared} were answered by a share");
}

/// Admitted in any window of a counted limit.
pub fn assert_none_over(name: &str, ledger: &Ledger) {
    let (used, worst) = (100.0 * ledger.utilisation(LIMIT), ledger.worst());
    print(&format!("{name}: {used:.1} % of full windows admitted, most in one {worst} of {LIMIT}"));
    assert!(worst <= LIMIT, "{name}: {worst} of {LIMIT}");
}

/// Admitted by a bucket of `LIMIT` per `PERIOD` that was full: its burst and what trickled in.
pub fn assert_bucket_holds(name: &str, ledger: &Ledger, trip: Duration) {
    let first = ledger.checks.iter().map(|check| check.sent_us).min().expect("checks");
    let last = ledger.checks.iter().map(|check| check.replied_us).max().expect("checks");
    let admitted = ledger.checks.iter().filter(|check| check.answer.allowed).count() as u64;
    let span = Duration::from_micros(last - first) + trip;
    let most = LIMIT + 1 + (LIMIT as f64 * span.as_secs_f64() / PERIOD.as_secs_f64()) as u64;
    print(&format!("{name}: {admitted} of at most {most} admitted"));
    assert!(admitted <= most, "{name}: {admitted} of {most}");
}
