//! `rationd bench`: sends load to a RESP socket, and prints throughput and percentiles.
//!
//! The command is a template, so this program can load the daemon, Redis, and any other server that speaks RESP. Each
//! thread keeps a core busy and never sleeps, so that the benchmark itself does not limit what is measured.

mod link;
mod load;
mod outcome;
mod replies;
mod report;
mod template;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use self::link::Target;
use self::load::Plan;
use self::outcome::LoadError;
use self::template::{Order, Template, Zipf};
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;

/// Most keys that `--zipf` can choose from: its table takes eight bytes for each.
const MOST_BY_ZIPF: u64 = 10_000_000;

/// Arguments of `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Load this TCP address instead of the Unix socket [env: RATIOND_BENCH_TCP]
    #[arg(long, value_name = "HOST:PORT", env = "RATIOND_BENCH_TCP", hide_env = true)]
    tcp: Option<String>,
    /// The command; `{key}` stands for a key [env: RATIOND_BENCH_COMMAND]
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "CL.THROTTLE {key} 15 30 60",
        env = "RATIOND_BENCH_COMMAND",
        hide_env = true
    )]
    command: String,
    /// Connections [env: RATIOND_BENCH_CONNECTIONS]
    #[arg(long, value_name = "N", default_value_t = 50, env = "RATIOND_BENCH_CONNECTIONS", hide_env = true,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Commands that a connection sends at once, or with --rate: may have unanswered [env: RATIOND_BENCH_PIPELINE]
    #[arg(long, value_name = "N", default_value_t = 1, env = "RATIOND_BENCH_PIPELINE", hide_env = true,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,
    /// Keys, chosen at random [env: RATIOND_BENCH_KEYS]
    #[arg(long, value_name = "N", default_value_t = 1, env = "RATIOND_BENCH_KEYS", hide_env = true,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    keys: u64,
    /// Take the keys in turn instead [env: RATIOND_BENCH_SEQUENCE=true]
    #[arg(long, env = "RATIOND_BENCH_SEQUENCE", hide_env = true)]
    sequence: bool,
    /// Choose the n-th key 1 / n^EXPONENT times as often as the first, as popular keys are (Zipf's law); of at most
    /// 10,000,000 keys [env: RATIOND_BENCH_ZIPF]
    #[arg(long, value_name = "EXPONENT", env = "RATIOND_BENCH_ZIPF", hide_env = true, conflicts_with = "sequence",
        value_parser = exponent)]
    zipf: Option<f64>,
    /// Seed of the choice of keys [env: RATIOND_BENCH_SEED]
    #[arg(long, value_name = "N", default_value_t = 1, env = "RATIOND_BENCH_SEED", hide_env = true)]
    seed: u64,
    /// Commands in all [default: as many as fit into --duration; env: RATIOND_BENCH_REQUESTS]
    #[arg(long, value_name = "N", env = "RATIOND_BENCH_REQUESTS", hide_env = true,
        value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Seconds of sending [default: 5, or until all --requests are sent; env: RATIOND_BENCH_DURATION]
    #[arg(long, value_name = "SECONDS", env = "RATIOND_BENCH_DURATION", hide_env = true, value_parser = seconds)]
    duration: Option<Duration>,
    /// Seconds at the beginning that are not counted [env: RATIOND_BENCH_WARMUP]
    #[arg(long, value_name = "SECONDS", default_value = "0", env = "RATIOND_BENCH_WARMUP", hide_env = true,
        value_parser = seconds)]
    warmup: Duration,
    /// Commands a second, at even intervals; latency then counts from when each was due, sent or not
    /// [default: as fast as answers come; env: RATIOND_BENCH_RATE]
    #[arg(long, value_name = "N", env = "RATIOND_BENCH_RATE", hide_env = true,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: Option<u64>,
    /// Threads; each keeps a core busy [env: RATIOND_BENCH_THREADS]
    #[arg(long, value_name = "N", default_value_t = 1, env = "RATIOND_BENCH_THREADS", hide_env = true,
        value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: u32,
}

/// Runs the benchmark. `socket` is called only if no TCP address is to be loaded.
pub(crate) fn run(
    args: &BenchArgs,
    globals: &Globals,
    socket: impl FnOnce() -> Result<PathBuf, ExitError>,
) -> anyhow::Result<ExitCode> {
    let template = Template::parse(&args.command).map_err(|problem| ExitError::new(Code::Usage, problem))?;
    let target = match &args.tcp {
        Some(address) => Target::Tcp(address.clone()),
        None => Target::Unix(socket()?),
    };
    let plan = args.plan(target, template)?;
    let outcome = load::run(&plan).map_err(|error| ExitError::new(error_code(&error), error))?;
    match globals.output {
        Output::Json => output::data(&report::json(&outcome).to_string())?,
        Output::Text => output::data(&report::text(&plan, &args.command, &outcome))?,
    }
    if let Some(problem) = &outcome.first_error {
        eprintln!("rationd: {} error replies, the first: {problem}", outcome.errors);
    }
    Ok(if outcome.errors > 0 && outcome.errors == outcome.replies() { Code::Usage.into() } else { Code::Ok.into() })
}

fn error_code(error: &LoadError) -> Code {
    match error {
        LoadError::Connect { .. } | LoadError::Closed { .. } | LoadError::Silent { .. } => Code::DaemonUnreachable,
        LoadError::Garbled { .. } => Code::Usage,
    }
}

impl BenchArgs {
    fn plan(&self, target: Target, template: Template) -> Result<Plan, ExitError> {
        let duration = match (self.duration, self.requests) {
            (None, None) => Some(Duration::from_secs(5)),
            (duration, _) => duration,
        };
        Ok(Plan {
            target,
            template,
            connections: self.connections as usize,
            pipeline: self.pipeline as usize,
            keys: self.keys,
            order: self.order()?,
            requests: self.requests,
            duration,
            warmup: self.warmup,
            rate: self.rate,
            threads: self.threads.min(self.connections) as usize,
        })
    }

    fn order(&self) -> Result<Order, ExitError> {
        let seed = self.seed;
        let Some(exponent) = self.zipf else {
            return Ok(if self.sequence { Order::Sequence } else { Order::Random { seed } });
        };
        if self.keys > MOST_BY_ZIPF {
            let problem =
                format!("--keys is {}, and --zipf chooses of {MOST_BY_ZIPF} at most: ask for fewer", self.keys);
            return Err(ExitError::new(Code::Usage, problem));
        }
        Ok(Order::Zipf { seed, law: Arc::new(Zipf::new(self.keys, exponent)) })
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent: f64 = text.parse().map_err(|_| format!("{text:?} is not a number, like 1 or 0.8"))?;
    if !(0.0..=10.0).contains(&exponent) {
        return Err(format!("{text} is not between 0 and 10"));
    }
    Ok(exponent)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds, like 5 or 0.5"))?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err(format!("{text} is not between 0 and 86400 seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}
