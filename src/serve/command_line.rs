//! Commands that the daemon's own command line sends over the socket: a reload, and keys, policies, peers and counts
//! as JSON.
//!
//! They run on the control runtime, one at a time, because an answer may be long and must not delay a data thread.
//! Called by sessions.

use std::sync::Arc;

use super::listing;
use super::mailbox::{Answer, Promise, Waiter};
use super::server_state::{ReloadMode, ServerState};
use super::top;
use crate::wire::command::Admin;
use crate::wire::reply::{Protocol, Writer};

/// Answers a command of the command line, on the control runtime.
pub(super) fn answer(state: Arc<ServerState>, admin: Admin, waiter: Waiter) {
    let (control, promise) = (state.control.clone(), Promise::to(waiter));
    control.spawn(async move {
        let _turn = state.admin_turn.lock().await;
        let asked = state.clone();
        let answered = tokio::task::spawn_blocking(move || text(&asked, admin)).await;
        let mut reply = Vec::new();
        let mut writer = Writer::new(&mut reply, Protocol::Two);
        match answered {
            Ok(Ok(text)) => writer.bulk(text.as_bytes()),
            Ok(Err(problem)) => writer.error(&format!("ERR {problem}")),
            Err(_) => writer.error("ERR the answer could not be made: see the daemon's log"),
        }
        promise.keep(Answer::Reply(reply));
    });
}

fn text(state: &ServerState, admin: Admin) -> Result<String, String> {
    match admin {
        Admin::Reload { dry_run } => match &state.reload {
            Some(reload) => reload(if dry_run { ReloadMode::DryRun } else { ReloadMode::Take }),
            None => Err("this daemon was started without a configuration to read again".into()),
        },
        Admin::Keys { cursor, most } => {
            Ok(listing::keys(&state.keys(cursor.unwrap_or(0), most), cursor.is_some(), most))
        }
        Admin::Policies => Ok(listing::policies(&state.policies.load())),
        Admin::Peers => match state.fleet_status() {
            Some(fleet) => Ok(listing::peers(&fleet, &state.node.count_owned(state.node.clock.now())).to_string()),
            None => Err("this node is alone: its configuration has no [fleet]".into()),
        },
        Admin::Top { most } => Ok(top::top(state, Some(most)).to_string()),
        Admin::Denials => Ok(state.denials.recent()),
        Admin::Stats => Ok(listing::stats(&state.stats())),
    }
}
