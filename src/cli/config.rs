//! `rationd config check|show|init|schema|import-envoy`: the configuration without a daemon.

use std::process::ExitCode;

use serde_json::json;

use super::args::ConfigCommand;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output::{self, Paint};
use super::resolve::resolve;
use super::{import, log};
use crate::config::{self, Loaded, Sources};

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
        ConfigCommand::Check | ConfigCommand::Show => {
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
        (ConfigCommand::Show, Output::Json) => output::data(&serde_json::to_string(&loaded.entries)?)?,
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

fn show(loaded: &Loaded, paint: Paint) -> std::io::Result<()> {
    let rows = loaded.entries.iter().map(|entry| {
        let value = entry.value.as_deref().unwrap_or("(unset)");
        vec![format!("{} = {value}", entry.key), paint.faint(&format!("# {}", entry.origin))]
    });
    output::data(&output::table(&rows.collect::<Vec<_>>()))
}

fn summary_as_json(loaded: &Loaded) -> String {
    json!({"ok": true, "policies": loaded.policies.iter().count(), "files": loaded.files}).to_string()
}
