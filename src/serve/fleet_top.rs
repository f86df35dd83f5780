//! What the whole fleet does, for viewers on this node; and this node's answers to the looks of peers.
//!
//! `fleet.top` says what peers learn, and `pictures` bounds how much is sent to all of them together. Figures are made
//! on threads for blocking work, and so seldom that neither checks nor the fleet wait for them, however many peers
//! look. Called by `command_line` and the status page, and by the fleet for peers.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::look::{self, MOST_KEYS};
use super::pictures::{Pictures, Step};
use super::server_state::ServerState;
use super::top;
use crate::config::FleetTop;
use crate::fleet::{LookTaker, PeerId, Show};

/// What each node of the fleet does now: see `FleetLook::nodes`. `None` where this node is in none.
pub async fn of_fleet(state: &Arc<ServerState>, keys: usize) -> Option<Arc<Value>> {
    let of_own = state.clone();
    let own = move || top::top(&of_own, Some(keys));
    Some(state.fleet_look.get()?.nodes(state.node.clock, keys, own).await)
}

/// Answers the looks of peers.
#[derive(Debug)]
pub struct LookedAt {
    state: Arc<ServerState>,
    detail: FleetTop,
    runtime: tokio::runtime::Handle,
    /// This node's answers of a moment ago.
    pictures: Arc<Mutex<Pictures>>,
}

impl LookedAt {
    /// Answers on `runtime`, with what `detail` allows.
    #[must_use]
    pub fn new(state: Arc<ServerState>, detail: FleetTop, runtime: tokio::runtime::Handle) -> Self {
        Self { state, detail, runtime, pictures: Arc::default() }
    }
}

impl LookTaker for LookedAt {
    fn handle_look(&self, from: &PeerId, question: &[u8], show: Show) {
        let Some(keys) = look::read_question(question) else {
            return tracing::warn!(peer = %from, "a peer looks at this node in a way that makes no sense");
        };
        if self.detail == FleetTop::Off {
            return show.send(look::nothing().into());
        }
        let (state, detail, pictures) = (self.state.clone(), self.detail, self.pictures.clone());
        self.runtime.spawn(async move {
            // The lock is held while figures are made, so that peers which look meanwhile get the same ones.
            let mut pictures = pictures.lock().await;
            let now = state.node.clock.now();
            let known = match pictures.step(now, keys) {
                Step::Send(answer) => return show.send(answer),
                Step::Refuse => return,
                Step::Make(known) => known,
            };
            let making = spawn_blocking(move || {
                let top = known.unwrap_or_else(|| Arc::new(own(&state, detail)));
                let answer = look::answer(&top, detail, keys);
                (top, answer.into())
            });
            if let Ok((top, answer)) = making.await {
                pictures.make(now, top, keys, bytes::Bytes::clone(&answer));
                show.send(answer);
            }
        });
    }
}

/// What this node does, as its peers learn it.
fn own(state: &ServerState, detail: FleetTop) -> Value {
    let mut top = top::top(state, (detail == FleetTop::Keys).then_some(MOST_KEYS));
    let mut peers = top["fleet"]["peers"].as_array().into_iter().flatten();
    let owns = peers.find(|peer| peer["self"] == true).map(|own| own["owns"].clone());
    if let Some(fields) = top.as_object_mut() {
        fields.remove("fleet");
        fields.insert("owns".into(), owns.unwrap_or_default());
    }
    top
}
