//! The stage: a fleet, its store, its clients, and the faults that can be caused.
//!
//! Which fault comes when is decided by the story, or by the user's keys.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::super::args::CaArgs;
use super::super::cert;
use super::ledger::{Fault, Ledger};
use super::load;
use super::node::{FLEET, Ground, Node, Sight};
use super::store::{Kind, Store};
use crate::clock;
use crate::core::policy::{PolicySet, PolicySpec};

/// Tokens of a window, and how long it is.
const LIMIT: u64 = 300;
const PERIOD_MS: u64 = 1_000;
/// Clients of each node, and how often each asks.
const CLIENTS: usize = 4;
const EVERY: Duration = Duration::from_millis(20);
/// Nodes at most, those that were killed among them.
pub(super) const MOST_NODES: usize = 40;
/// Bytes of the path of the directory at most. A socket's path may have 107, and a daemon binds its socket under a name with its
/// process's number first.
const MOST_PATH: usize = 107 - "/node-40.sock.4194304".len();

/// Which nodes lose the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    All,
    Half,
}

/// The stage.
pub(super) struct Stage {
    pub(super) nodes: Vec<Node>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) store: Store,
    pub(super) cut: Option<Cut>,
    /// Carries clients, gates and the twin.
    runtime: Runtime,
    directory: PathBuf,
    /// Becomes true when the user or a signal asks to end, or the terminal is closed.
    is_over: watch::Receiver<bool>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let runtime = self.runtime.handle().clone();
        self.nodes.iter_mut().for_each(|node| node.kill(&runtime));
        // Fails if the directory is not empty or gone already, which does not matter.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Stage {
    /// A fleet of so many nodes that share one limit.
    ///
    /// # Errors
    /// What keeps it from starting.
    pub(super) fn begin(nodes: usize, kind: Kind) -> anyhow::Result<Self> {
        let place = std::env::temp_dir();
        let directory = place.join(format!("rationd-demo-{:x}", clock::random()));
        let length = directory.as_os_str().len();
        if length > MOST_PATH {
            let place = place.display();
            anyhow::bail!(
                "{place} is too long a path for sockets, by {} bytes; set TMPDIR to a shorter one",
                length - MOST_PATH
            );
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let is_over = signals(&runtime)?;
        fs::create_dir(&directory).map_err(|error| {
            let place = place.display();
            anyhow::anyhow!("cannot make a directory in {place}: {error}; set TMPDIR to one that you may write")
        })?;
        let store = match Store::start(kind, &directory, runtime.handle()) {
            Ok(store) => store,
            Err(problem) => {
                let _ = fs::remove_dir_all(&directory);
                return Err(anyhow::anyhow!(problem));
            }
        };
        let ledger = Arc::new(Ledger::new(LIMIT, PERIOD_MS));
        let mut stage = Self { nodes: Vec::new(), ledger, store, cut: None, runtime, directory, is_over };
        cert::ca_files(&CaArgs { fleet: FLEET.to_owned(), dir: stage.directory.clone(), days: 1 })?;
        stage.start_nodes(nodes)?;
        Ok(stage)
    }

    /// The limit as the configuration would write it.
    pub(super) fn limit() -> String {
        format!("{LIMIT}/{}s fixed", PERIOD_MS / 1_000)
    }

    /// How often a node is asked in a second.
    pub(super) fn rate() -> u64 {
        CLIENTS as u64 * 1_000 / u64::try_from(EVERY.as_millis()).unwrap_or(1)
    }

    fn start_nodes(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count.min(MOST_NODES - self.nodes.len()) {
            let index = self.nodes.len();
            let seeds = self.nodes.iter().filter(|node| node.is_alive()).take(3);
            let spec = PolicySpec { limits: vec![Self::limit()], ..PolicySpec::default() };
            let ground = Ground {
                directory: &self.directory,
                store: &self.store.path,
                runtime: self.runtime.handle(),
                seeds: seeds.map(|node| node.address.to_string()).collect(),
                policies: PolicySet::compile(&[(load::POLICY.to_owned(), spec)].into())
                    .expect("the demo's policy is right"),
            };
            let mut node = Node::start(&format!("node-{}", index + 1), ground)?;
            for _ in 0..CLIENTS {
                let client = load::ask(node.socket.clone(), index, EVERY, self.ledger.clone());
                node.clients.push(self.runtime.spawn(client).abort_handle());
            }
            if self.cut == Some(Cut::All) {
                node.gate.set(false);
            }
            self.nodes.push(node);
        }
        Ok(())
    }

    /// Unix milliseconds.
    pub(super) fn now_ms() -> u64 {
        clock::wall().0 / 1_000
    }

    /// Kills the last living node, unless it is the only one, and returns its name.
    pub(super) fn kill(&mut self) -> Option<String> {
        if self.alive() < 2 {
            return None;
        }
        let node = self.nodes.iter_mut().rfind(|node| node.is_alive())?;
        self.ledger.begin(Fault::Kill, Self::now_ms());
        node.kill(self.runtime.handle());
        Some(node.name.clone())
    }

    /// Adds nodes, as many as there is room for, and returns how many.
    ///
    /// # Errors
    /// One does not start.
    pub(super) fn add(&mut self, count: usize) -> anyhow::Result<usize> {
        let before = self.nodes.len();
        self.ledger.begin(Fault::Join, Self::now_ms());
        self.start_nodes(count)?;
        Ok(self.nodes.len() - before)
    }

    /// Cuts the store off from all living nodes, or from every other one, and returns from how many.
    pub(super) fn cut(&mut self, whom: Cut) -> usize {
        self.heal();
        self.cut = Some(whom);
        self.ledger.begin(if whom == Cut::All { Fault::CutAll } else { Fault::CutSome }, Self::now_ms());
        let each = if whom == Cut::All { 1 } else { 2 };
        let cut: Vec<_> = self.nodes.iter().filter(|node| node.is_alive()).skip(each - 1).step_by(each).collect();
        cut.iter().for_each(|node| node.gate.set(false));
        cut.len()
    }

    /// Lets all nodes reach the store.
    pub(super) fn heal(&mut self) {
        self.cut = None;
        self.nodes.iter().filter(|node| node.is_alive()).for_each(|node| node.gate.set(true));
        self.ledger.heal(Self::now_ms());
    }

    /// Flushes the store.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn flush(&self) -> anyhow::Result<()> {
        self.ledger.begin(Fault::Flush, Self::now_ms());
        self.runtime.block_on(self.store.flush()).map_err(|problem| anyhow::anyhow!(problem))
    }

    /// Nodes that live.
    pub(super) fn alive(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_alive()).count()
    }

    /// The state of each node.
    pub(super) fn sights(&self) -> Vec<Sight> {
        self.nodes.iter().map(Node::sight).collect()
    }

    /// Waits for so long; false as soon as the user or a signal asks to end.
    pub(super) fn wait(&self, span: Duration) -> bool {
        let mut is_over = self.is_over.clone();
        self.runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(span) => true,
                _ = is_over.wait_for(|is_over| *is_over) => false,
            }
        })
    }

    /// Whether a signal has asked to end it.
    pub(super) fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }
}

/// Whether a signal has asked this process to end. By default it would end at once, and leave its store and its files behind.
fn signals(runtime: &Runtime) -> std::io::Result<watch::Receiver<bool>> {
    let _context = runtime.enter();
    let (over, is_over) = watch::channel(false);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut signal, over) = (signal(kind)?, over.clone());
        runtime.spawn(async move {
            signal.recv().await;
            over.send_replace(true);
        });
    }
    Ok(is_over)
}
