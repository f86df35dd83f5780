//! What the operating system says of this process: its processor time, its memory and its open files.
//!
//! Read anew for each scrape. Without `/proc` there are no figures.

use std::fs;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::core::time::Timestamp;

/// What this process has used, and what it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Time on processors, the kernel's on its behalf included.
    pub cpu: Duration,
    /// Bytes of memory that are resident.
    pub resident: u64,
    /// Descriptors that are open.
    pub open_files: u64,
    /// Descriptors that may be open; `None`: as many as it likes.
    pub most_open_files: Option<u64>,
    /// When it began.
    pub started: Timestamp,
}

impl ProcessUse {
    /// What is known now of a process that began at `started`.
    #[must_use]
    pub fn read(started: Timestamp) -> Option<Self> {
        let stat = Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)?;
        // One of them is the directory that is being read.
        let open_files = (fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1);
        Some(Self {
            cpu: Duration::from_millis(stat.ticks.saturating_mul(1_000) / clock_ticks_per_second().max(1)),
            resident: stat.pages.saturating_mul(page_size() as u64),
            open_files,
            most_open_files: getrlimit(Resource::Nofile).current,
            started,
        })
    }
}

/// What is wanted of a line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Clock ticks on processors.
    ticks: u64,
    /// Pages that are resident.
    pages: u64,
}

impl Stat {
    /// proc(5): the program's name, which may hold anything, stands in brackets; `utime`, `stime` and `rss` are the
    /// 14th, 15th and 24th field, and the third follows the brackets.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.trim_end().parse::<u64>().ok();
        Some(Self { ticks: field(14)?.checked_add(field(15)?)?, pages: field(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_behind_the_programs_name() {
        let line =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 8 9 20 0 6 0 12345 999 321 18446744073709551615 1\n";
        assert_eq!(Stat::parse(line), Some(Stat { ticks: 175, pages: 321 }));
        assert_eq!(Stat::parse("7 (a) S 1 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_has_memory_and_open_files() {
        let used = ProcessUse::read(Timestamp(5)).expect("there is a /proc");
        assert!(used.resident > 100_000, "{used:?}");
        assert!(used.open_files >= 3 && used.most_open_files.is_none_or(|most| used.open_files <= most), "{used:?}");
    }
}
