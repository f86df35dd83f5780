//! What the subcommands share: arguments that many of them take, and how each of them ends.

use std::path::PathBuf;

use clap::Args;

use crate::plan::{Calls, Network, Plan};
use crate::span::Span;

/// What many subcommands take.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Runs at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(super) jobs: u16,
    /// Write summary.json and index.html into this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) travel: Travel,
}

/// How calls travel.
#[derive(Debug, Args)]
pub(super) struct Travel {
    /// Calls travel in order on connections, whatever the plans say.
    #[arg(long)]
    pub(super) streams: bool,
}

impl Travel {
    /// A plan as it is to be run.
    pub(super) fn adapt(&self, plan: Plan) -> Plan {
        let calls = if self.streams { Calls::Streams } else { plan.network.calls };
        Plan { network: Network { calls, ..plan.network }, ..plan }
    }
}

/// How a subcommand ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Bad,
}

impl Verdict {
    /// The verdict over so many runs that did not hold.
    pub(super) fn of(bad: u64) -> Self {
        if bad == 0 { Self::Good } else { Self::Bad }
    }
}

/// `value_parser` for spans.
pub(super) fn span(text: &str) -> Result<Span, String> {
    text.parse()
}
