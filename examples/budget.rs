//! A budget of tokens for calls to a language model, whose real cost is known only afterwards.
//!
//! Before a call its estimate is held, so that calls under way count against the budget; after it the real cost is
//! settled, and the rest of the estimate is there for others. A process that dies leaves the estimate charged.
//!
//! `cargo run --release -- --socket /tmp/rationd.sock serve`, then `cargo run --example budget -- /tmp/rationd.sock`.

use std::time::Duration;

use rationd::client::{Client, ClientError, Decision};

/// What came of asking for an estimate.
enum Held {
    /// It is charged, and this settles it.
    Under(Vec<u8>),
    /// It is not; there may be enough after so long.
    Denied(Option<Duration>),
}

/// What a call may take at most, prompt and answer.
const ESTIMATE: u64 = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).unwrap_or_else(|| "/run/rationd/rationd.sock".to_owned());
    let mut rations = Client::connect(socket)?;
    for prompt in ["a short question", "a much longer question, with a long answer", "one more", "and the last"] {
        match hold(&mut rations, "api", "customer:7", ESTIMATE)? {
            Held::Under(id) => {
                let used = ask_the_model(prompt);
                let charged = settle(&mut rations, &id, used)?;
                println!("{prompt:?} took {charged} tokens of {ESTIMATE} that were held");
            }
            Held::Denied(wait) => println!("{prompt:?} must wait: {wait:?}"),
        }
    }
    Ok(())
}

/// Stands for the model: what a call really took.
fn ask_the_model(prompt: &str) -> u64 {
    prompt.len() as u64
}

/// Charges an estimate.
fn hold(rations: &mut Client, policy: &str, key: &str, cost: u64) -> Result<Held, ClientError> {
    let cost = cost.to_string();
    let reply = rations.command(&[b"RATION.HOLD", policy.as_bytes(), key.as_bytes(), cost.as_bytes()])?;
    let unexpected = || ClientError::Unexpected { command: "RATION.HOLD", reply: reply.clone() };
    let decision = Decision::from_reply(&reply).ok_or_else(unexpected)?;
    if !decision.is_allowed() {
        return Ok(Held::Denied(decision.retry_after));
    }
    // The id stands behind the decision.
    let id = reply.as_array().and_then(<[_]>::last).and_then(|id| id.as_bytes());
    id.map(|id| Held::Under(id.to_vec())).ok_or_else(unexpected)
}

/// Settles a hold by what it really cost; what stands charged now.
fn settle(rations: &mut Client, id: &[u8], cost: u64) -> Result<i64, ClientError> {
    let reply = rations.command(&[b"RATION.SETTLE", id, cost.to_string().as_bytes()])?;
    reply.as_integer().ok_or(ClientError::Unexpected { command: "RATION.SETTLE", reply })
}
