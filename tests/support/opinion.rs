//! What the memory store has to say of what a script has answered and left in a simulated server.
//!
//! As `simulations/src/checkers/second_opinion.rs` asks it in the simulator of the core; here the calls are read from the
//! bytes that a daemon has sent, also those that it has joined in one command.

use rationd::core::call::{Call, Op};
use rationd::core::time::Timestamp;
use rationd::store::excerpt::{Excerpt, Occupied, field_of_node};
use rationd::store::memory::MemoryStore;
use rationd::store::redis::Twin;
use rationd::store::script;
use redis_model::keyspace::{Entry, Keyspace};

/// What a hash says: of tokens, or of slots.
#[derive(Debug, Default, PartialEq)]
struct State {
    tokens: Option<Excerpt>,
    slots: Option<Occupied>,
}

/// One call of a command, and what its script is about to find.
pub struct Found {
    node: String,
    call: Call,
    before: State,
}

impl State {
    fn read(entry: Option<&Entry>, node: &str, call: &Call) -> Self {
        let Some(entry) = entry else { return Self::default() };
        let last = entry.expires_ms().expect("each key ends at some time");
        let expires = Timestamp((last.unsigned_abs() + 1) * 1_000);
        if let Op::Occupy(_) = call.op {
            let slots = Occupied::read(expires, entry.fields()).expect("the script writes nothing else");
            return Self { tokens: None, slots: Some(slots) };
        }
        let limits = &call.rule.limits;
        let tokens = Excerpt::read(&field_of_node(node), limits, expires, |name| entry.field(name));
        Self { tokens: tokens.expect("the scripts write nothing else"), slots: None }
    }

    /// When the key ends.
    fn expires(&mut self) -> Option<&mut Timestamp> {
        let of_tokens = self.tokens.as_mut().map(|tokens| &mut tokens.expires);
        of_tokens.or(self.slots.as_mut().map(|slots| &mut slots.expires))
    }

    /// Whether a script has left this, where the memory store has left `own`. Redis counts lifetimes in whole milliseconds, to the end
    /// of the last, of which slots have one more.
    fn is(&mut self, own: &mut Self, before: &mut Self) -> bool {
        let more = if own.slots.is_some() { 2_000 } else { 1_000 };
        let was = before.expires().copied();
        if let (Some(end), Some(own)) = (self.expires(), own.expires()) {
            let is_same = *end == Timestamp(own.0 / 1_000 * 1_000 + more) || was == Some(*own) && *end == *own;
            if !is_same {
                return false;
            }
            *own = *end;
        }
        match (&self.tokens, &own.tokens) {
            (Some(tokens), Some(of_own)) => tokens.says_as(of_own),
            _ => self == own,
        }
    }
}

/// The calls of a command, and what each will find at this time.
pub fn found(keyspace: &Keyspace, now: u64, words: &[Vec<u8>]) -> Vec<(Found, String)> {
    let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
    let calls = Twin::calls(&words).expect("daemons send nothing else");
    let keys = words[3..].iter().map(|key| String::from_utf8_lossy(key).into_owned());
    let found = |((node, call), key): ((String, Call), String)| {
        let before = State::read(keyspace.look(&key, now), &node, &call);
        (Found { node, call, before }, key)
    };
    calls.into_iter().zip(keys).map(found).collect()
}

/// What the memory store has against what a script has answered to a call, and left of its key.
pub fn objection(found: Found, after: Option<&Entry>, numbers: &[i64], now: u64) -> Option<String> {
    let Found { node, call, mut before } = found;
    let (limits, now) = (&call.rule.limits[..], Timestamp(now));
    let mut store = MemoryStore::new(64, 1);
    store.put(call.digest, &node, limits, before.tokens.as_ref());
    store.put_occupied(call.digest, before.slots.as_ref());
    let own = store.call(now, &node, &call);
    let grant = script::grant(&call, numbers);
    if grant.as_ref().ok() != own.as_ref().ok() {
        return Some(format!(
            "{node} asks {call:?} of {before:?}: a script answered {grant:?}, the memory store {own:?}"
        ));
    }
    let mut own = State { tokens: store.excerpt(call.digest, &node, limits), slots: store.occupied(call.digest) };
    let mut after = State::read(after, &node, &call);
    let is_same = after.is(&mut own, &mut before);
    (!is_same).then(|| format!("{node} asks {call:?} of {before:?}: a script left {after:?}, the memory store {own:?}"))
}
