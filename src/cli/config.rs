//! `rationd config check|show|init|schema|import-envoy`: the configuration without a daemon; `diff`: beside one.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::args::ConfigCommand;
use super::ask::ask_json;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output::{self, Paint};
use super::resolve::resolve;
use super::{import, log};
use crate::config::{self, Loaded, Sources};
use crate::serve::{listing, policy_diff};

pub(crate) fn run(command: &ConfigCommand, globals: &Globals, sources: &Sources) -> anyhow::Result<ExitCode> {
    let loaded = match command {
        ConfigCommand::Init => {
            output::data(config::SAMPLE.trim_end())?;
            return Ok(Code::Ok.into());
        }
        ConfigCommand::Schema => {
            output::data(&serde_json::to_string_pretty(&config::json_schema())?)?;
            return Ok(Code::Ok.into());
        }
        ConfigCommand::ImportEnvoy { file } => return import::run(file, globals),
        ConfigCommand::Diff | ConfigCommand::Check | ConfigCommand::Show => {
            let loaded = config::load(sources).and_then(|loaded| resolve(&loaded).map(|_| loaded));
            if let Ok(loaded) = &loaded {
                log::filter(&loaded.config.log, globals).map_err(|problem| ExitError::new(Code::BadConfig, problem))?;
            }
            loaded
        }
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(errors) => {
            if globals.output == Output::Json {
                output::data(&output::errors_as_json(&errors))?;
            }
            return Err(ExitError::new(Code::BadConfig, errors).into());
        }
    };
    match (command, globals.output) {
        (ConfigCommand::Show, Output::Json) => output::data(&serde_json::to_string(&loaded.entries())?)?,
        (ConfigCommand::Show, Output::Text) => show(&loaded, Paint::stdout(globals.color))?,
        (_, Output::Json) => output::data(&summary_as_json(&loaded))?,
        (_, Output::Text) => {
            let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
            let from = if files.is_empty() { "no file, built-in defaults".to_owned() } else { files.join(", ") };
            let patterns: usize = loaded.policies.iter().map(|policy| policy.overrides.patterns()).sum();
            let wide = if patterns == 0 { String::new() } else { format!(", {patterns} overrides by `*`") };
            output::data(&format!("ok: {} policies{wide} ({from})", loaded.policies.iter().count()))?;
        }
    }
    Ok(Code::Ok.into())
}

/// Compares the policies of this configuration with those of the daemon.
pub(crate) fn diff(globals: &Globals, sources: &Sources, socket: &Path) -> anyhow::Result<ExitCode> {
    let loaded = config::load(sources).map_err(|errors| ExitError::new(Code::BadConfig, errors))?;
    let new = serde_json::from_str(&listing::policies(&loaded.policies))?;
    let differences = policy_diff::between(&ask_json(socket, &[b"RATION.POLICIES"])?, &new);
    let is_same = differences.as_array().is_some_and(Vec::is_empty);
    match globals.output {
        Output::Json => output::data(&differences.to_string())?,
        Output::Text => output::data(&policy_diff::text(&differences))?,
    }
    Ok(if is_same { Code::Ok } else { Code::No }.into())
}

fn show(loaded: &Loaded, paint: Paint) -> std::io::Result<()> {
    let entries = loaded.entries();
    let rows = entries.iter().map(|entry| {
        let value = entry.value.as_deref().unwrap_or("(unset)");
        vec![format!("{} = {value}", entry.key), paint.faint(&format!("# {}", entry.origin))]
    });
    output::data(&output::table(&rows.collect::<Vec<_>>()))
}

fn summary_as_json(loaded: &Loaded) -> String {
    json!({"ok": true, "policies": loaded.policies.iter().count(), "files": loaded.files}).to_string()
}
