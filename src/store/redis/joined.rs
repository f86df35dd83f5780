//! Calls that leave as one command: acquires of one limit, each of another key, for one server.
//!
//! To Redis a script is dear to begin: reading the command, setting the script up, asking for the time and answering
//! in numbers take a third of what an acquire takes of it. So calls that are written in one go, and say the same of
//! their limit, share one command, in which the script does for each key what it would do for it alone. Nothing waits
//! for others to come.
//!
//! Only a server that says that it is a single one (`redis_mode:standalone`) is sent such commands: in a cluster two
//! keys have two slots, and a proxy might send all keys to where the first one lives. Knows no connection. Called by `wire.rs`,
//! which gathers, by way of the calls (`routed_call.rs`).

use redis::Value;

use super::evalsha;
use super::frame::Reply;
use crate::core::call::Call;
use crate::store::script::{self, Caller, Script};

/// Most calls in one command. Redis does nothing else for the sixth of a millisecond that they take; with twice as many it would
/// have one more hundredth less to do.
const MOST: usize = 16;

/// Calls that have gathered and are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    count: usize,
    /// The script that each of them would be sent with by itself.
    alone: Option<&'static Script>,
    /// The script that takes all of them.
    together: Option<&'static Script>,
    /// The arguments of the first of them: the field of the node and, for the case that it remains the only one, all its numbers.
    node: Vec<u8>,
    first: Vec<u8>,
    /// Key after key, and what each call says for itself, as they are sent.
    keys: Vec<u8>,
    heads: Vec<u8>,
    /// What a call that is added says for itself.
    own: Vec<u8>,
}

impl Joined {
    /// How many calls have gathered.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a call; false if it cannot share a command with these, or there are [`MOST`] already.
    pub(super) fn add(&mut self, caller: &Caller<'_>, call: &Call) -> bool {
        let Some(together) = Script::of_many(call).filter(|_| self.count < MOST) else { return false };
        let (mut place, mut fits) = (0, true);
        let Self { count, node, first, own, .. } = self;
        script::arguments(caller, call, &mut |argument| {
            let (of_first, shared) = match place {
                0 => (&mut *node, argument.len()),
                _ => (&mut *first, script::OF_LIMIT),
            };
            if *count == 0 {
                of_first.extend_from_slice(argument);
            }
            fits &= of_first.get(..shared) == argument.get(..shared);
            own.clear();
            own.extend_from_slice(script::of_call(argument));
            place += 1;
        });
        if !fits {
            return false;
        }
        evalsha::bulk(&mut self.heads, &self.own);
        evalsha::bulk_key(&mut self.keys, caller.prefix, call.digest);
        (self.alone, self.together) = (Some(Script::of(call)), Some(together));
        self.count += 1;
        true
    }

    /// Writes their command, and forgets them. A single call is written as if nothing could be joined.
    pub(super) fn write(&mut self, line: &mut Vec<u8>) {
        match (self.count, self.alone, self.together) {
            (1, Some(script), _) => {
                evalsha::begin(line, script, 1, 2);
                line.extend_from_slice(&self.keys);
                [&self.node, &self.first].into_iter().for_each(|argument| evalsha::bulk(line, argument));
            }
            (2.., _, Some(script)) => {
                evalsha::begin(line, script, self.count, self.count + 2);
                line.extend_from_slice(&self.keys);
                evalsha::bulk(line, &self.node);
                evalsha::bulk(line, self.first.get(..script::OF_LIMIT).unwrap_or_default());
                line.extend_from_slice(&self.heads);
            }
            _ => return,
        }
        self.count = 0;
        let Self { node, first, keys, heads, .. } = self;
        [node, first, keys, heads].into_iter().for_each(Vec::clear);
    }
}

/// The answer to several calls.
pub(super) enum Answers {
    /// To each of them, in order.
    Each(Vec<u8>),
    /// The same, where at least one of them had an error.
    Some(Vec<Value>),
    /// One answer for all of them: an error, or something that the script never answers.
    All(Value),
}

impl Answers {
    /// What a reply says to `count` calls.
    pub(super) fn read(reply: Reply<'_>, count: usize) -> Self {
        match reply.into_value() {
            Value::BulkString(bytes) if script::answer_at(&bytes, count, 0).is_some() => Self::Each(bytes),
            Value::Array(items) if items.len() == count => Self::Some(items),
            value => Self::All(value),
        }
    }

    /// Passes on what it says to the call at `place` of `count`.
    pub(super) fn with<T>(&self, count: usize, place: usize, use_it: impl FnOnce(Reply<'_>) -> T) -> T {
        use_it(match self {
            Self::Each(bytes) => script::answer_at(bytes, count, place).map_or(Reply::Value(Value::Nil), Reply::Text),
            Self::Some(items) => match &items[place] {
                Value::BulkString(bytes) => Reply::Text(bytes),
                value => Reply::Value(value.clone()),
            },
            Self::All(value) => Reply::Value(value.clone()),
        })
    }

    /// Whether it is one error for all of them, of which some may have been executed by then.
    pub(super) fn is_error_of_all(&self) -> bool {
        matches!(self, Self::All(Value::ServerError(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::{Acquire, JUST_NOW, Known, Op, Window};
    use crate::core::key::Digest;
    use crate::core::limit::Limit;
    use crate::core::policy::Rule;
    use crate::core::time::{Instant, Micros};

    const CALLER: Caller<'_> = Caller { prefix: "ration", node: "n1", now: None };

    fn call(key: u128, limit: &str, op: Op) -> Call {
        let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect(limit)]));
        Call { id: 1_000 + key as u64, digest: Digest(key), rule, op, sent_at: Instant(0) }
    }

    fn acquire(need: u64) -> Op {
        Op::Acquire(Acquire {
            need,
            want: need + 1,
            least: need,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: Default::default(),
            until: None,
            claim: None,
        })
    }

    fn written(joined: &mut Joined) -> Vec<u8> {
        let mut line = b"before".to_vec();
        joined.write(&mut line);
        line.split_off(6)
    }

    #[test]
    fn several_are_one_command_and_one_is_what_it_always_is() {
        let mut joined = Joined::default();
        for count in [1, 2, 9, 10, MOST, 1, 3] {
            let calls: Vec<_> = (0..count as u64).map(|key| call(key.into(), "10/1s fixed", acquire(key))).collect();
            assert!(calls.iter().all(|call| joined.add(&CALLER, call)));
            assert_eq!(joined.count(), count);
            // There are never more than `MOST`.
            assert!(count < MOST || !joined.add(&CALLER, &calls[0]));
            let command = match count {
                1 => evalsha::command(&CALLER, &calls[0], false),
                _ => evalsha::command_of_many(&CALLER, &calls).expect("they are of one kind"),
            };
            assert_eq!(written(&mut joined), command.get_packed_command(), "{count}");
        }
        assert_eq!(written(&mut joined), b"");
    }

    #[test]
    fn what_says_another_thing_of_its_limit_is_none_of_them() {
        let first = call(1, "10/1s fixed", acquire(1));
        let older = {
            let Op::Acquire(ask) = acquire(1) else { unreachable!() };
            let mut known = [Known::default(); crate::core::limit::MAX_LIMITS];
            known[0].used = 3;
            Op::Acquire(Acquire { known, ages: [Micros(7); crate::core::limit::MAX_LIMITS], ..ask })
        };
        let mut joined = Joined::default();
        let calls = [first.clone(), call(2, "10/1s fixed", older)];
        assert!(calls.iter().all(|call| joined.add(&CALLER, call)), "what it says of itself is its own");
        let command = evalsha::command_of_many(&CALLER, &calls).expect("they are of one kind");
        assert_eq!(written(&mut joined), command.get_packed_command());
        let mut others = vec![
            call(2, "11/1s fixed", acquire(1)),
            call(2, "10/1s sliding", acquire(1)),
            call(2, "10/1s fixed", Op::Peek),
            call(2, "10/1s fixed", Op::Reset),
        ];
        let several = ["10/1s fixed", "9/1m"].map(|text| Limit::parse(text).expect(text));
        others.push(Call { rule: Arc::new(Rule::of("p", &several)), ..call(2, "10/1s fixed", acquire(1)) });
        for other in &others {
            let mut joined = Joined::default();
            assert!(joined.add(&CALLER, &first));
            assert!(!joined.add(&CALLER, other), "{other:?}");
            assert_eq!(written(&mut joined), evalsha::command(&CALLER, &first, false).get_packed_command());
            assert!(evalsha::command_of_many(&CALLER, &[first.clone(), other.clone()]).is_none());
        }
    }

    #[test]
    fn each_is_told_what_its_key_is_told() {
        let numbers = |first: u8| [vec![first, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0].repeat(6)].concat();
        let seen = |answers: &Answers| {
            [0, 1].map(|place| {
                answers.with(2, place, |reply| match reply {
                    Reply::Text(text) => {
                        let numbers = script::answer_alone(text).expect("seven numbers");
                        format!("{} {}", numbers[0], numbers[6])
                    }
                    Reply::Value(value) => format!("{value:?}"),
                })
            })
        };
        let (one, other) = (numbers(3), numbers(4));
        let answers = Answers::read(Reply::Value(Value::BulkString([&one[..], &other].concat())), 2);
        assert_eq!((seen(&answers), answers.is_error_of_all()), (["3 257", "4 257"].map(str::to_owned), false));
        let error = redis::parse_redis_value(b"-ERR it fails\r\n").expect("a reply");
        let answers =
            Answers::read(Reply::Value(Value::Array(vec![error.clone(), Value::BulkString(other.clone())])), 2);
        assert_eq!((seen(&answers)[1].as_str(), answers.is_error_of_all()), ("4 257", false));
        assert!(seen(&answers)[0].contains("fails"));
        let answers = Answers::read(Reply::Value(error), 2);
        assert!(answers.is_error_of_all() && seen(&answers).iter().all(|said| said.contains("fails")));
        // Answers that are cut short, for too few calls, or not the script's: no call takes another's part of them.
        for strange in [Value::BulkString(one), Value::Array(vec![Value::Nil]), Value::Nil, Value::BulkString(vec![])] {
            let answers = Answers::read(Reply::Value(strange.clone()), 2);
            assert_eq!(seen(&answers), [format!("{strange:?}"), format!("{strange:?}")]);
        }
    }
}
