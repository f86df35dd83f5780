//! The memory that clients can make this process use, and the bounds that follow from it.
//!
//! Unless configured, it is a quarter of the available memory, but at least 256 MiB and at most half of it. Available
//! is the memory of the cgroup where that is limited (a container's limit, `MemoryMax=`), and otherwise that of the
//! machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::serve::{Limits, StartOptions};

/// The least budget, unless a smaller one is configured.
const LEAST: u64 = 256 << 20;

/// One of so many parts of the budget is for keys.
const PARTS: u64 = 2;

/// About the memory of a leased key: its entry in the table, its state, and its name.
pub(crate) const LEASED_KEY: u64 = 3 << 10;

/// About the memory of one limit of a key in the embedded store.
pub(crate) const EMBEDDED_KEY: u64 = 96;

/// The budget in bytes: the configured one, or a quarter of the available memory.
pub(crate) fn budget(configured: Option<u64>) -> u64 {
    configured.unwrap_or_else(|| default(available()))
}

fn default(available: Option<u64>) -> u64 {
    available.map_or(LEAST, |bytes| (bytes / 4).max(LEAST).min(bytes / 2))
}

/// Adapts the bounds of a daemon to the budget: half of it is for keys, an eighth for holds, and the rest for
/// connections.
pub(crate) fn fit(options: StartOptions, budget: u64, each_key: u64) -> StartOptions {
    let half = budget / PARTS;
    let fits = keys_within(budget, each_key);
    let wanted = options.settings.max_keys;
    let mut settings = options.settings;
    if fits < wanted {
        tracing::info!(
            wanted,
            max_keys = fits,
            max_memory_mib = budget >> 20,
            "fewer keys are held than node.max_keys: more need more of node.max_memory"
        );
        settings.max_keys = fits;
    }
    let rest = usize::try_from(half).unwrap_or(usize::MAX);
    let (held, kept_in_all) = (rest / 4, rest / 4 * 3);
    let kept = options.limits.kept.min(kept_in_all / 8);
    StartOptions { settings, limits: Limits { kept, kept_in_all, held, ..options.limits }, ..options }
}

/// How many keys are held at most within such a budget.
pub(crate) fn keys_within(budget: u64, each_key: u64) -> usize {
    usize::try_from(budget / PARTS / each_key).unwrap_or(usize::MAX).max(16)
}

/// The memory of this process's cgroup, where that is bounded, and of the machine otherwise.
fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let cgroup =
        fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| of_cgroups(&text, Path::new("/sys/fs/cgroup")));
    [machine, cgroup].into_iter().flatten().min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The lowest limit of the cgroups in `/proc/self/cgroup` and of their ancestors, for both versions of cgroups.
fn of_cgroups(groups: &str, root: &Path) -> Option<u64> {
    let bounds = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" if number == "0" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        // Within a container the path may be the host's; the container's own cgroup is mounted at the root.
        let above = group.ancestors().take_while(|above| above.starts_with(&root)).map(PathBuf::from);
        above.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    });
    bounds.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_what_there_is_and_at_least_so_much() {
        assert_eq!(default(Some(16 << 30)), 4 << 30);
        assert_eq!(default(Some(600 << 20)), LEAST);
        assert_eq!(default(Some(256 << 20)), 128 << 20, "the process itself needs some, too");
        assert_eq!(default(None), LEAST);
        assert_eq!(budget(Some(64 << 20)), 64 << 20, "who says less gets less");
    }

    #[test]
    fn the_machine_tells_its_memory() {
        assert_eq!(of_machine("MemTotal:       24618240 kB\nMemFree: 1 kB\n"), Some(24_618_240 << 10));
        assert_eq!(of_machine("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn the_least_bound_on_the_way_up_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        let of = |groups: &str| of_cgroups(groups, root.path());
        write("system.slice/memory.max", "1073741824\n");
        write("system.slice/rationd.service/memory.max", "max\n");
        assert_eq!(of("0::/system.slice/rationd.service\n"), Some(1 << 30));
        write("system.slice/rationd.service/memory.max", "268435456\n");
        assert_eq!(of("0::/system.slice/rationd.service\n"), Some(256 << 20));
        assert_eq!(of("0::/elsewhere\n"), None);
        // A container sees its own limit at the root.
        write("memory.max", "536870912\n");
        assert_eq!(of("0::/docker/0123\n"), Some(512 << 20));
        write("memory/docker/0123/memory.limit_in_bytes", "134217728\n");
        assert_eq!(of("4:cpu,memory:/docker/0123\n1:name=systemd:/x\n"), Some(128 << 20));
        write("memory/docker/0123/memory.limit_in_bytes", "9223372036854771712\n");
        assert!(of("4:memory:/docker/0123\n").is_some_and(|bytes| bytes > 1 << 60), "no bound at all");
    }
}
