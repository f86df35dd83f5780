//! `rationd peers`: shows the fleet as the daemon sees it, and who owns how many of the keys that it knows.

use std::path::Path;
use std::process::ExitCode;

use super::ask::ask_json;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::output;

pub(crate) fn run(globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = ask_json(socket, &[b"RATION.PEERS"])?;
    if globals.output == Output::Json {
        output::data(&answer.to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["NODE", "STATE", "ADDRESS", "VERSION", "OWNER", "OWNS", "HEARD"].map(str::to_owned).to_vec()];
    for peer in answer["peers"].as_array().into_iter().flatten() {
        let text = |key: &str| output::visible(peer[key].as_str().unwrap_or("-"));
        let heard = match (peer["self"].as_bool(), peer["heard_ms_ago"].as_u64()) {
            (Some(true), _) => "this node".to_owned(),
            (_, Some(millis)) => format!("{millis} ms ago"),
            _ => "not yet".to_owned(),
        };
        let owns = peer["owns"].as_u64().map_or_else(|| "-".to_owned(), |keys| format!("{keys} keys"));
        rows.push(vec![text("name"), text("state"), text("address"), text("version"), text("owner"), owns, heard]);
    }
    let number = |key: &str| answer[key].as_u64().unwrap_or(0);
    let whole = format!(
        "{} of {} live; the quietest was heard {} ms ago; {} bytes in, {} out; this certificate lasts {} days",
        number("live"),
        number("largest"),
        number("staleness_ms"),
        number("bytes_in"),
        number("bytes_out"),
        answer["certificate_days_left"],
    );
    output::data(&format!("{}\n{whole}", output::table(&rows)))?;
    Ok(Code::Ok.into())
}
