//! One measurement: a run of `rationd bench` against a server, and what it cost the server.

use super::process::{Failed, cpu_seconds, output, pinned};

/// The client program.
pub(crate) const CLIENT: &str = env!("CARGO_BIN_EXE_rationd");

/// Where a server listens.
pub(crate) enum Door {
    Socket(std::path::PathBuf),
    Port(u16),
}

/// Arguments of a run.
pub(crate) struct Bench<'a> {
    pub(crate) command: &'a str,
    pub(crate) pipeline: u32,
    pub(crate) keys: u64,
    pub(crate) seconds: f64,
    pub(crate) rate: Option<u32>,
    /// Send one command for each key, then end.
    pub(crate) every_key_once: bool,
    /// Choose keys by Zipf's law with exponent 1, not evenly.
    pub(crate) zipf: bool,
    pub(crate) seed: u32,
    /// Seconds before it is counted.
    pub(crate) warmup: f64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Replies a second.
    pub(crate) rate: f64,
    pub(crate) replies: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of the server for each reply.
    pub(crate) cpu_us: f64,
}

impl<'a> Bench<'a> {
    /// One key, no pipeline, one second.
    pub(crate) fn of(command: &'a str) -> Self {
        Self {
            command,
            pipeline: 1,
            keys: 1,
            seconds: 1.0,
            rate: None,
            every_key_once: false,
            zipf: false,
            seed: 1,
            warmup: 0.2,
        }
    }

    /// Loads the server of process `server` through `door`.
    pub(crate) fn run(&self, door: &Door, server: u32) -> Result<Sample, Failed> {
        let mut client = pinned(CLIENT, 1);
        client.args(["bench", "--output", "json", "--command", self.command]);
        match door {
            Door::Socket(path) => client.arg("--socket").arg(path),
            Door::Port(port) => client.args(["--tcp", &format!("127.0.0.1:{port}")]),
        };
        client.args(["--pipeline", &self.pipeline.to_string(), "--keys", &self.keys.to_string()]);
        if let Some(rate) = self.rate {
            client.args(["--rate", &rate.to_string()]);
        }
        if self.every_key_once {
            client.args(["--sequence", "--requests", &self.keys.to_string()]);
        } else {
            client.args(["--warmup", &self.warmup.to_string(), "--duration", &self.seconds.to_string()]);
            client.args(["--seed", &self.seed.to_string()]);
        }
        if self.zipf {
            client.args(["--zipf", "1"]);
        }
        let before = cpu_seconds(server);
        let output = output(client)?;
        let cpu = cpu_seconds(server) - before;
        let report: serde_json::Value = serde_json::from_str(&output).map_err(|e| Failed(format!("{e}: {output}")))?;
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
        if number(&report["errors"]) > 0.0 {
            return Err(Failed(format!("{} was answered with errors", self.command)));
        }
        let replies = number(&report["replies"]);
        // The warm-up cost CPU too, at the same rate.
        let counted = if self.every_key_once { 1.0 } else { self.seconds / (self.seconds + self.warmup) };
        Ok(Sample {
            rate: number(&report["replies_per_second"]),
            replies,
            p50_us: number(&report["latency_us"]["p50"]),
            p99_us: number(&report["latency_us"]["p99"]),
            cpu_us: cpu * counted * 1e6 / replies,
        })
    }
}

/// The sample in the middle by throughput.
pub(crate) fn median(samples: &mut [Sample]) -> Sample {
    median_by(samples, |sample| sample.rate)
}

/// The sample in the middle by what `by` tells.
pub(crate) fn median_by(samples: &mut [Sample], by: impl Fn(&Sample) -> f64) -> Sample {
    samples.sort_by(|a, b| by(a).total_cmp(&by(b)));
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
