//! `rationd plan`: what another configuration would have done to the checks that a daemon has recorded.

mod report;

use std::process::ExitCode;

use serde_json::json;

use self::report::Report;
use super::args::PlanArgs;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::replay::{Policies, Terms, replay};
use super::resolve::digest_key;
use super::{output, percent};
use crate::config::{self, Loaded, Sources};
use crate::core::key::DigestKey;
use crate::core::limit::parse_period;
use crate::core::policy::PolicySet;
use crate::core::time::{Micros, Timestamp};
use crate::serve::recording::file::{self, Arrival, digest_tag};
use crate::serve::{listing, policy_diff};

/// Replays recordings under the present configuration and the new one, and prints what differs.
pub(crate) fn run(args: &PlanArgs, globals: &Globals, present: &Sources) -> anyhow::Result<ExitCode> {
    let load = |sources: &Sources| config::load(sources).map_err(|errors| ExitError::new(Code::BadConfig, errors));
    let now = load(present)?;
    let then = load(&Sources { file: Some(args.new.clone()), ..present.clone() })?;
    let digests = digest_key(&now.config).map_err(|problem| ExitError::new(Code::BadConfig, problem))?;
    let recorded = Recorded::read(args, digests)?;
    let terms = Terms {
        nodes: args.nodes,
        trip: trip(args, &now)?,
        timeout: now.config.store.timeout,
        digests,
        counted_from: Timestamp(0),
    };
    let fates = |set: &PolicySet| replay(set, &recorded.nodes, recorded.has_keys, terms).fates;
    let (of_now, of_then) = (fates(&now.policies), fates(&then.policies));
    let sets = [&now, &then].map(|loaded| Policies::new(&loaded.policies, digests, recorded.has_keys));
    let name = |arrival: &Arrival| {
        let policy = sets.iter().find_map(|policies| policies.policy(arrival));
        policy.map(|policy| &*policy.name)
    };
    let report = Report::new(&recorded.nodes, (&of_now, &of_then), name);
    let most = args.count as usize;
    let differences = differences(&now, &then)?;
    if globals.output == Output::Json {
        let mut answer = report.json(most);
        answer["recorded"] = json!({
            "nodes": recorded.nodes.len(), "seconds": recorded.seconds(), "keys": recorded.has_keys,
        });
        answer["differences"] = differences;
        output::data(&answer.to_string())?;
    } else {
        print_report(&recorded, &report, &differences, most)?;
        if !recorded.has_keys && [&now, &then].iter().any(|loaded| has_patterns(&loaded.policies)) {
            eprintln!(
                "rationd: overrides by `*` were left out, because keys are not in the recording: record.keys = true \
                 records them"
            );
        }
    }
    let all = report.all();
    // Compared without a division, which would round a share below a millionth down to 0.
    let is_much = args
        .max_newly_denied
        .filter(|allowed| u128::from(all.newly_denied) * 1_000_000 > u128::from(all.checks) * u128::from(*allowed));
    if let Some(allowed) = is_much {
        let (seen, allowed) = (percent::text(percent::of(all.newly_denied, all.checks)), percent::text(allowed));
        eprintln!("rationd: {seen} of the checks would be newly denied; --max-newly-denied allows {allowed}");
    }
    Ok(if is_much.is_some() { Code::No } else { Code::Ok }.into())
}

/// The recordings, one for each node.
struct Recorded {
    nodes: Vec<Vec<Arrival>>,
    /// All of them have keys.
    has_keys: bool,
}

impl Recorded {
    fn read(args: &PlanArgs, digests: DigestKey) -> Result<Self, ExitError> {
        let (mut nodes, mut has_keys) = (Vec::new(), true);
        for path in &args.from {
            let failure =
                |problem: String| ExitError::new(Code::System, format!("--from {}: {problem}", path.display()));
            let read = file::read(path).map_err(|error| failure(error.to_string()))?;
            if read.digests != digest_tag(digests) {
                let problem = "was recorded under another store.digest_secret_file than the present configuration has: \
                               name the configuration of that daemon with --config";
                return Err(failure(problem.to_owned()));
            }
            if read.arrivals.is_empty() {
                return Err(failure("nothing is recorded in it yet".to_owned()));
            }
            has_keys &= read.has_keys;
            let mut arrivals = read.arrivals;
            arrivals.sort_by_key(|arrival| arrival.at);
            nodes.push(arrivals);
        }
        Ok(Self { nodes, has_keys })
    }

    fn seconds(&self) -> u64 {
        let times = || self.nodes.iter().flatten().map(|arrival| arrival.at);
        let span = times().min().zip(times().max()).map_or(0, |(first, last)| last.0 - first.0);
        span.div_ceil(1_000_000)
    }
}

/// The round trip from a node to the store.
fn trip(args: &PlanArgs, now: &Loaded) -> Result<Micros, ExitError> {
    if now.config.store.url == "memory:" {
        return Ok(Micros::ZERO);
    }
    parse_period(&args.trip).map_err(|error| ExitError::new(Code::Usage, format!("--trip {}: {error}", args.trip)))
}

fn differences(now: &Loaded, then: &Loaded) -> anyhow::Result<serde_json::Value> {
    let [now, then] = [now, then].map(|loaded| serde_json::from_str(&listing::policies(&loaded.policies)));
    Ok(policy_diff::between(&now?, &then?))
}

fn has_patterns(policies: &PolicySet) -> bool {
    policies.iter().any(|policy| policy.overrides.patterns() > 0)
}

fn print_report(
    recorded: &Recorded,
    report: &Report,
    differences: &serde_json::Value,
    most: usize,
) -> std::io::Result<()> {
    let all = report.all();
    let (checks, seconds) = (all.checks + all.unknown + report.strange, recorded.seconds().max(1));
    let nodes = recorded.nodes.len();
    let word = if nodes == 1 { "node" } else { "nodes" };
    output::data(&format!("recorded: {checks} checks at {nodes} {word} in {seconds} s"))?;
    let share = percent::text(percent::of(all.checks - all.unlike, all.checks));
    output::data(&format!(
        "replayed: {} checks; under the present policies {share} end as they were recorded",
        all.checks
    ))?;
    if all.unknown > 0 {
        output::data(&format!(
            "left out: {} checks of policies that are not in both, or of concurrent limits, whose ends are not recorded",
            all.unknown
        ))?;
    }
    if report.strange > 0 {
        output::data(&format!(
            "left out: {} checks of policies that neither configuration has, or with their limits in the command",
            report.strange
        ))?;
    }
    output::data(&format!("\n{}\n\n{}", policy_diff::text(differences), report.text(most)))
}
