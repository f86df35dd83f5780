//! The load: clients that check one key at even intervals, and report the answers to the ledger.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval};

use super::ledger::Ledger;
use crate::clock::Clock;
use crate::wire::value::Value;

/// The policy that is asked for, and the key.
pub(super) const POLICY: &str = "demo";
const QUESTION: &[u8] = b"*3\r\n$12\r\nRATION.CHECK\r\n$4\r\ndemo\r\n$9\r\neverybody\r\n";

/// One client of `node`, for ever: a check each `every`. If the node is gone, the check counts as lost.
pub(super) async fn ask(socket: Arc<Path>, node: usize, every: Duration, ledger: Arc<Ledger>) {
    let clock = Clock::start();
    let mut turns = interval(every);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut stream, mut input) = (None, Vec::new());
    loop {
        turns.tick().await;
        if stream.is_none() {
            input.clear();
            stream = UnixStream::connect(&socket).await.ok();
        }
        let Some(open) = &mut stream else { continue };
        let begun = clock.now();
        match round_trip(open, &mut input).await {
            Ok(reply) => {
                let waited = clock.now().since(begun);
                let fields = reply.as_array().unwrap_or_default();
                let number = |index: usize| fields.get(index).and_then(Value::as_integer);
                match (number(0), number(6).and_then(|ends| u64::try_from(ends).ok())) {
                    (Some(limited), Some(ends)) => ledger.handle_answer(node, limited == 0, ends, waited.0),
                    _ => ledger.handle_loss(),
                }
            }
            Err(_) => {
                ledger.handle_loss();
                stream = None;
            }
        }
    }
}

async fn round_trip(stream: &mut UnixStream, input: &mut Vec<u8>) -> io::Result<Value> {
    stream.write_all(QUESTION).await?;
    loop {
        if let Some((value, len)) = Value::parse(input).map_err(io::Error::other)? {
            input.drain(..len);
            return Ok(value);
        }
        if stream.read_buf(input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_one_command() {
        let (value, len) = Value::parse(QUESTION).expect("RESP").expect("whole");
        assert_eq!(len, QUESTION.len());
        let words: Vec<_> = value.as_array().expect("an array").iter().filter_map(Value::as_bytes).collect();
        assert_eq!(words, [&b"RATION.CHECK"[..], POLICY.as_bytes(), b"everybody"]);
    }
}
