//! Goals that are not reached yet: they stay in the files, say in each run what was seen, and are judged on demand. What
//! the same run must hold whatever the machine is asserted where it stands.

use super::served::print;

/// Prints what was seen of a goal. With `RATIOND_GOALS=1` it must be reached.
pub fn judge(goal: &str, seen: impl std::fmt::Display, is_reached: bool) {
    let verdict = if is_reached { "reached" } else { "NOT REACHED" };
    print(&format!("goal {verdict}: {goal}; seen: {seen}"));
    assert!(is_reached || std::env::var_os("RATIOND_GOALS").is_none(), "{goal}; seen: {seen}");
}
