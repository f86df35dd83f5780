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

#[test]
fn another_answer_or_other_remains_of_any_part_of_a_command_are_noticed() {
    use std::sync::Arc;

    use rationd::core::call::{Acquire, JUST_NOW, Window};
    use rationd::core::key::Digest;
    use rationd::core::limit::Limit;
    use rationd::core::policy::Rule;
    use rationd::core::time::Instant;
    use rationd::store::redis::evalsha;
    use redis_model::scripts::Scripts;

    const NOW: u64 = 1_800_000_000_000_500;
    let call = |key: u64| {
        let ask = Acquire {
            need: key,
            want: 4,
            least: 0,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: Default::default(),
            until: None,
            claim: None,
        };
        let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1s fixed").expect("a limit")]));
        Call { id: 7, digest: Digest(key.into()), rule, op: Op::Acquire(ask), sent_at: Instant(0) }
    };
    let caller = script::Caller { prefix: "s", node: "n", now: None };
    let command = evalsha::command_of_many(&caller, &[call(1), call(2)]).expect("they are of one kind");
    let word = |word: redis::Arg<&[u8]>| if let redis::Arg::Simple(word) = word { word.to_vec() } else { Vec::new() };
    let words: Vec<Vec<u8>> = command.args_iter().map(word).collect();
    let texts = script::all().map(|script| (script.name, script.text.to_owned()));
    let (mut scripts, mut keyspace) = (Scripts::read(&texts).expect("they are Lua"), Keyspace::default());
    let objections = |keyspace: &Keyspace, told: &[Vec<u8>], more: i64, is_gone: bool| {
        let found = found(&Keyspace::default(), NOW, &words);
        let each = found.into_iter().zip(told).map(|((found, key), told)| {
            let mut numbers = script::told_alone(told).expect("seven numbers");
            numbers[0] += more;
            let after = keyspace.look(&key, NOW).filter(|_| !is_gone);
            u64::from(objection(found, after, &numbers, NOW).is_some())
        });
        each.sum::<u64>()
    };
    let keys = [1, 2].map(|key| script::key("s", Digest(key)));
    let names = keys.each_ref().map(String::as_str);
    let ran = scripts.run_many(&mut keyspace, script::many().name, &names, NOW, |push| {
        words[5..].iter().for_each(|argument| push(argument));
    });
    let told: Vec<_> = ran.expect("an answer").into_iter().map(|told| told.expect("no error")).collect();
    assert_eq!([objections(&keyspace, &told, 0, false), objections(&keyspace, &told, 1, false)], [0, 2]);
    assert_eq!(objections(&keyspace, &told, 0, true), 2, "nothing was left");
}
