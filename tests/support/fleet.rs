//! Real daemons that are a fleet: certificates made by `rationd cert`, and what each daemon sees of the
//! others, noted whenever it changes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::clock::Watch;
use super::metrics::Metrics;
use super::process::Daemon;

/// Between two looks at all daemons.
const LOOK: Duration = Duration::from_millis(20);

/// A fleet's CA, made by the command that operators use, in a directory that goes with it.
pub struct Issuer {
    fleet: String,
    directory: TempDir,
}

impl Issuer {
    /// Makes a CA for a fleet of this name.
    pub fn new(fleet: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        rationd(directory.path(), &["cert", "ca", "--fleet", fleet]);
        Self { fleet: fleet.to_owned(), directory }
    }

    /// Makes the certificate of a node, and returns `[node]` and `[fleet]` of its configuration as the
    /// command prints them, but on a port of the operating system's choice.
    pub fn node(&self, name: &str) -> String {
        self.node_at(name, "127.0.0.1:0")
    }

    /// The same where the certificate, in a directory of its own, lapses after so many days.
    pub fn node_for(&self, name: &str, days: u32) -> String {
        let (dir, days) = (format!("{name}-{days}"), days.to_string());
        let words = ["cert", "node", "--fleet", &self.fleet, "--name", name, "--ca-dir", ".", "--dir", &dir];
        let printed = rationd(self.directory.path(), &[&words[..], &["--days", &days]].concat());
        printed.replace("\"0.0.0.0:7946\"", "\"127.0.0.1:0\"")
    }

    /// The same listening at this address.
    pub fn node_at(&self, name: &str, listen: &str) -> String {
        let words = ["cert", "node", "--fleet", &self.fleet, "--name", name, "--ca-dir", ".", "--dir", name];
        let printed = rationd(self.directory.path(), &words);
        let section = printed.replace("\"0.0.0.0:7946\"", &format!("{listen:?}"));
        assert_ne!(section, printed, "the command names a port to listen on");
        section
    }
}

/// What `rationd` prints, run in `directory` without any variable of this environment that it would read.
fn rationd(directory: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RATIOND_")) {
        command.env_remove(name);
    }
    let output = command.current_dir(directory).args(words).output().expect("cargo built it");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

impl Daemon {
    /// Where it listens for peers, as `rationd peers` tells.
    ///
    /// # Panics
    /// When it is in no fleet.
    #[must_use]
    pub fn fleet_address(&self) -> String {
        let config = self.config().display().to_string();
        let printed = rationd(self.directory(), &["--config", &config, "-o", "json", "peers"]);
        let answer: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        let own = answer["peers"].as_array().and_then(|peers| peers.iter().find(|peer| peer["self"] == true));
        own.and_then(|own| own["address"].as_str()).unwrap_or_else(|| panic!("no own address in {printed}")).to_owned()
    }
}

/// What one daemon sees of its fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    pub up: u64,
    pub leaving: u64,
    pub missed: u64,
    /// What it leases at most at once under a policy.
    pub local_limit: u64,
}

impl Sight {
    /// Of a scrape, for the policy of this name.
    pub fn of(metrics: &Metrics, policy: &str) -> Self {
        let nodes = |state: &str| metrics.sum("rationd_fleet_nodes", &[&format!("state={state:?}")]) as u64;
        let label = format!("policy={policy:?}");
        let local_limit = metrics.sum("rationd_prefilter_limit_tokens", &[&label]) as u64;
        Self { up: nodes("up"), leaving: nodes("leaving"), missed: nodes("missed"), local_limit }
    }

    /// This many nodes, all of them up, each of which leases so many tokens at most.
    pub fn of_whole(nodes: u64, local_limit: u64) -> Self {
        Self { up: nodes, leaving: 0, missed: 0, local_limit }
    }
}

/// What each daemon saw of its fleet, and when that changed.
pub struct Sights {
    policy: &'static str,
    watch: Watch,
    seen: Vec<(Duration, usize, Sight)>,
}

impl Sights {
    /// Begins to watch, with regard to the policy of this name.
    pub fn new(policy: &'static str) -> Self {
        Self { policy, watch: Watch::start(), seen: Vec::new() }
    }

    /// Looks at all daemons until each sees `wanted`: how long that took, or `None` after `longest`.
    pub fn until(&mut self, daemons: &[Daemon], wanted: Sight, longest: Duration) -> Option<Duration> {
        self.until_all(daemons, longest, |sight| sight == wanted)
    }

    /// The same until what each sees is as it should be.
    pub fn until_all(
        &mut self,
        daemons: &[Daemon],
        longest: Duration,
        is_wanted: impl Fn(Sight) -> bool,
    ) -> Option<Duration> {
        self.until_each(daemons, longest, |_, sight| is_wanted(sight))
    }

    /// The same where not all should see the same.
    pub fn until_each(
        &mut self,
        daemons: &[Daemon],
        longest: Duration,
        is_wanted: impl Fn(usize, Sight) -> bool,
    ) -> Option<Duration> {
        let start = self.watch.elapsed();
        loop {
            let looked = self.watch.elapsed();
            if self.look(daemons).into_iter().enumerate().all(|(node, sight)| is_wanted(node, sight)) {
                return Some(self.watch.elapsed() - start);
            }
            if looked - start > longest {
                return None;
            }
            self.watch.pause_until(looked + LOOK);
        }
    }

    /// Looks once at all daemons.
    pub fn look(&mut self, daemons: &[Daemon]) -> Vec<Sight> {
        let sights: Vec<_> = daemons.iter().map(|daemon| Sight::of(&daemon.metrics(), self.policy)).collect();
        for (node, sight) in sights.iter().enumerate() {
            let known = self.seen.iter().rfind(|(_, seen, _)| *seen == node).map(|(_, _, known)| known);
            if known != Some(sight) {
                self.seen.push((self.watch.elapsed(), node, *sight));
            }
        }
        sights
    }

    /// A line for each node: when it saw what, `up+leaving-missed` and its local limit.
    pub fn lines(&self) -> Vec<String> {
        let nodes = self.seen.iter().map(|(_, node, _)| node + 1).max().unwrap_or(0);
        let line = |node: usize| {
            let of_node = self.seen.iter().filter(|(_, seen, _)| *seen == node);
            let steps = of_node.map(|(at, _, sight)| {
                let Sight { up, leaving, missed, local_limit } = sight;
                format!("{:.2}s {up}+{leaving}-{missed}: {local_limit}", at.as_secs_f64())
            });
            format!("node {node} saw up+leaving-missed: limit  {}", steps.collect::<Vec<_>>().join(" | "))
        };
        (0..nodes).map(line).collect()
    }
}
