//! Faults as a chart shows them: a bar on the time axis with a few words.

use crate::plan::{Fault, Way, What};

/// A fault on the time axis, in true microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// What.
    pub label: String,
    /// When it began.
    pub from: u64,
    /// When it ended: `from` for what happens at one moment, `None` until it ends.
    pub until: Option<u64>,
}

impl Bar {
    /// The bar of a fault that begins.
    pub(super) fn new(at: u64, fault: &Fault) -> Self {
        let until = (fault.lasts.0 == 0).then_some(at);
        Self { label: label(&fault.what), from: at, until }
    }
}

/// A fault in a few words.
#[must_use]
pub fn label(what: &What) -> String {
    match what {
        What::Cut { nodes, masters, way } => {
            let way = match way {
                Way::Both => "",
                Way::ToRedis => " (calls)",
                Way::FromRedis => " (answers)",
            };
            format!("cut {} from {}{way}", some("node", nodes), some("master", masters))
        }
        What::Swizzle => "swizzled cuts".into(),
        What::Clog { master } => format!("clog master {master}"),
        What::Slow { master, by } => format!("master {master} slower by {by}"),
        What::Noise { loss, repeats } => format!("noise: {loss}‰ lost, {repeats}‰ repeated"),
        What::Kill { master } => format!("kill master {master}"),
        What::Pause { master } => format!("pause master {master}"),
        What::Isolate { master, nodes } => format!("isolate master {master} with {}", some("node", nodes)),
        What::Refuse { master, error } => format!("master {master} says {error}"),
        What::NoReplica { master } => format!("master {master} without replica"),
        What::ScriptFlush { master } => format!("master {master} forgets scripts"),
        What::Reshard { from, to, part } => format!("reshard {part}‰ of {from} to {to}"),
        What::FlushAll { master } => format!("master {master} loses all keys"),
        What::Evict { master, part } => format!("master {master} evicts {part}‰"),
        What::Crash { node } => format!("crash node {node}"),
        What::Freeze { node } => format!("freeze node {node}"),
        What::Starve { nodes, longest } => format!("{} starve, {longest} at most", some("node", nodes)),
        What::Restart { node } => format!("restart node {node}"),
        What::Roll { crash: true, down } => format!("rolling crash, {down} each"),
        What::Roll { crash: false, down } => format!("rolling restart, {down} each"),
        What::Scale { nodes } => format!("scale to {nodes} nodes"),
        What::Push { policy, limits } => format!("push policy {policy}: {}", limits.join(", ")),
        What::Set { master, by, back } => {
            format!("clock of master {master} set {by} {}", if *back { "back" } else { "ahead" })
        }
        What::Jump { node, by } => format!("clock of node {node} jumps {by}"),
        What::Part { nodes, one_way } => {
            format!("{} {}", some("node", nodes), if *one_way { "not heard" } else { "apart" })
        }
        What::Liar { node, lie } => format!("node {node} lies ({lie:?})"),
        What::Build { nodes, newer } => {
            format!("{} of the build {}", some("node", nodes), if *newer { "after" } else { "before" })
        }
        What::Surge { factor } => format!("demand × {}", crate::ledger::thousandths(u64::from(*factor))),
    }
}

/// `nodes 1, 2`, `all nodes`.
fn some(what: &str, which: &[u32]) -> String {
    match which {
        [] => format!("all {what}s"),
        [one] => format!("{what} {one}"),
        more => format!("{what}s {}", more.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
