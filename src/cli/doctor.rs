//! `rationd doctor`: checks of all that is here, with why each matters and what to do.
//!
//! It first collects all answers and then judges them. Changes nothing but one key of the store, which it removes
//! again.

mod check;
mod daemon;
mod fleet;
mod lapse;
mod machine;
mod patient;
mod policies;
mod store;

use std::process::ExitCode;

use serde_json::json;

pub use self::check::Check;
use self::check::Look;
use self::patient::Patient;
use super::args::DoctorArgs;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::output::{self, Paint};
use crate::config::Sources;

/// All checks, in the order in which they are printed.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [machine::CHECKS, store::CHECKS, fleet::CHECKS, policies::CHECKS, daemon::CHECKS].into_iter().flatten()
}

pub(crate) fn run(args: &DoctorArgs, globals: &Globals, sources: &Sources) -> anyhow::Result<ExitCode> {
    let patient = Patient::examine(sources, args.cost, args.nodes)?;
    let looks = checks().map(|check| (check, (check.look)(&patient)));
    let found: Vec<_> = looks.filter(|(_, look)| *look != Look::Apart).collect();
    let count = |word: &str| found.iter().filter(|(_, look)| look.word() == word).count();
    let (warnings, fatal) = (count("warning"), count("fatal"));
    match globals.output {
        Output::Json => output::data(&as_json(&found, warnings, fatal))?,
        Output::Text => {
            let paint = Paint::stdout(globals.color);
            let parts = found.iter().map(|(check, look)| as_text(check, look, paint));
            let sum = format!("{} ok, {warnings} warnings, {fatal} fatal", count("ok"));
            output::data(&parts.chain([sum]).collect::<Vec<_>>().join("\n"))?;
        }
    }
    Ok(match (fatal, warnings) {
        _ if patient.config().is_none() => Code::BadConfig,
        (0, 0) => Code::Ok,
        (0, _) if !args.strict => Code::Ok,
        _ => Code::No,
    }
    .into())
}

/// One line if all is well; otherwise the reason and the next step stand below it.
fn as_text(check: &Check, look: &Look, paint: Paint) -> String {
    let word = format!("{:8}", look.word());
    let seen = look.seen().split('\n').map(output::visible).collect::<Vec<_>>().join("\n         ");
    match look {
        Look::Ok(_) | Look::Apart => format!("{} {:20} {}", paint.good(&word), check.id, paint.faint(&seen)),
        Look::Warning(_) | Look::Fatal(_) => {
            let rest = [("why", check.why), ("do", check.next), ("read", &format!("docs/{}", check.see))];
            let rest = rest.map(|(name, text)| format!("         {} {text}", paint.faint(&format!("{name:4}"))));
            format!("{} {:20} {seen}\n{}", paint.bad(&word), check.id, rest.join("\n"))
        }
    }
}

fn as_json(found: &[(&Check, Look)], warnings: usize, fatal: usize) -> String {
    let list = found.iter().map(|(check, look)| {
        json!({
            "id": check.id,
            "verdict": look.word(),
            "seen": look.seen(),
            "why": check.why,
            "next": check.next,
            "see": format!("docs/{}", check.see),
        })
    });
    json!({"ok": fatal == 0, "fatal": fatal, "warnings": warnings, "checks": list.collect::<Vec<_>>()}).to_string()
}
