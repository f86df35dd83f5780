//! Commands that the daemon's own command line sends over the socket: a reload, and keys, policies, peers and counts
//! as JSON.
//!
//! They run on the control runtime, one at a time, because an answer may be long and must not delay a data thread. A
//! question about the whole fleet does not hold up the others: its nodes may take a second to answer. Called by
//! sessions.

use std::sync::Arc;

use super::fleet_top;
use super::listing;
use super::mailbox::{Answer, Promise, Waiter};
use super::server_state::{ReloadMode, ServerState};
use super::top;
use crate::wire::command::Admin;
use crate::wire::reply::{Protocol, Writer};

/// What a node without a fleet says of its fleet.
const ALONE: &str = "this node is alone: its configuration has no [fleet]";

/// Answers a command of the command line, on the control runtime.
pub(super) fn answer(state: Arc<ServerState>, admin: Admin, waiter: Waiter) {
    let (control, promise) = (state.control.clone(), Promise::to(waiter));
    control.spawn(async move {
        let answered = match admin {
            Admin::Top { most, fleet: true } => Ok(of_fleet(&state, most).await),
            _ => {
                let _turn = state.admin_turn.lock().await;
                let asked = state.clone();
                tokio::task::spawn_blocking(move || text(&asked, admin)).await
            }
        };
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

/// What each node of the fleet does, as JSON.
async fn of_fleet(state: &Arc<ServerState>, most: usize) -> Result<String, String> {
    let figures = fleet_top::of_fleet(state, most).await;
    figures.map(|figures| figures.to_string()).ok_or_else(|| ALONE.into())
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
            None => Err(ALONE.into()),
        },
        Admin::Top { most, .. } => Ok(top::top(state, Some(most)).to_string()),
        Admin::Denials => Ok(state.denials.recent()),
        Admin::Stats => Ok(listing::stats(&state.stats())),
    }
}
