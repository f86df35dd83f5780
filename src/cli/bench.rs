//! `rationd bench`.

use std::path::Path;
use std::process::ExitCode;

use super::exit::{Code, Stop};

/// Arguments of `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {}

pub(crate) fn run(_: BenchArgs, _: &Path) -> anyhow::Result<ExitCode> {
    Err(Stop::new(Code::Usage, "bench is not available in this build").into())
}
