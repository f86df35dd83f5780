//! The same operations on both sides: `lua.rs` with its keyspace, and a real server. Each answer is
//! compared, and the whole keyspace when asked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use rationd::store::script::{self, Script};
use rationd::wire::value::Value;
use simulations::earlier;
use simulations::keyspace::{Entry, Keyspace, Reply};
use simulations::lua::Scripts;

use crate::server::Server;

/// Operations that are told when two answers differ.
const TOLD: usize = 24;

/// What an operation answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A script's numbers.
    Numbers(Vec<i64>),
    /// A command's integer.
    Number(i64),
    /// A command's strings.
    Strings(Vec<Option<Vec<u8>>>),
    /// The error line.
    Error(String),
    /// Whatever it was.
    Any,
}

/// Both sides, and what they were asked.
pub(crate) struct Pair {
    server: Server,
    scripts: Scripts,
    keyspace: Keyspace,
    shas: Vec<(&'static str, String)>,
    now: u64,
    /// Operations of which the server has not answered all.
    asked: VecDeque<Operation>,
    /// How many of them, the last ones, are open.
    open: usize,
}

/// What a key holds: no fields for another type than a hash.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    /// The last millisecond; -1 = for ever.
    expires: i64,
    fields: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What was asked, when, and our answer.
struct Operation {
    now: u64,
    words: Vec<Vec<u8>>,
    answer: Answer,
}

impl Operation {
    fn is_answered(&self, real: &Value) -> bool {
        match (&self.answer, real) {
            (Answer::Any, real) => !matches!(real, Value::Error(_)),
            (Answer::Number(ours), Value::Integer(real)) => ours == real,
            (Answer::Numbers(ours), Value::Bulk(real)) => {
                script::numbers_in(real).is_some_and(|real| real.eq(ours.iter().copied()))
            }
            // Scripts of the build before answer in integers.
            (Answer::Numbers(ours), Value::Array(real)) => {
                real.iter().map(Value::as_integer).eq(ours.iter().map(|number| Some(*number)))
            }
            (Answer::Strings(ours), Value::Array(real)) => {
                let mut real: Vec<_> = real.iter().map(|string| string.as_bytes().map(<[u8]>::to_vec)).collect();
                if self.words[0] == b"HKEYS" {
                    real.sort(); // in Redis the order of fields is anything
                }
                *ours == real
            }
            // Redis says behind the message of a script that failed which script it was.
            (Answer::Error(ours), Value::Error(real)) => {
                real.strip_prefix(ours.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(" script: "))
            }
            _ => false,
        }
    }
}

impl Pair {
    /// An empty server, and these scripts on an empty keyspace.
    pub(crate) fn new(scripts: Scripts) -> Self {
        let mut server = Server::start();
        let mut load = |script: &'static Script| {
            let Value::Bulk(sha) = server.ask(&["SCRIPT", "LOAD", script.text]) else {
                panic!("{} fails", script.name)
            };
            (script.name, String::from_utf8(sha).expect("a hash in hex"))
        };
        let shas = script::all().into_iter().chain(earlier::all()).map(&mut load).collect();
        Self { server, scripts, keyspace: Keyspace::default(), shas, now: 0, asked: VecDeque::new(), open: 0 }
    }

    /// Moves the clock of both, once everything is answered.
    pub(crate) fn set_clock(&mut self, now: u64) -> Result<(), String> {
        self.settle()?;
        self.server.set_clock(now);
        self.keyspace.settle_before(u64::MAX);
        self.now = now;
        Ok(())
    }

    /// The clock of both.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The microsecond in which a key expires, unless that is beyond all times of the test.
    pub(crate) fn expires_at(&self, key: &str) -> Option<u64> {
        let last = u64::try_from(self.keyspace.get(key)?.expires_ms()?).ok()?;
        (last < 1 << 42).then(|| (last + 1) * 1_000)
    }

    /// Runs a script. The answer is ours; the server's is compared later.
    pub(crate) fn script(&mut self, script: &Script, key: &str, argv: Vec<Vec<u8>>) -> Result<Vec<i64>, String> {
        let (_, sha) = self.shas.iter().find(|(name, _)| *name == script.name).expect("all are loaded");
        let mut words: Vec<Vec<u8>> = ["EVALSHA", sha, "1", key].map(|word| word.as_bytes().to_vec()).into();
        words.extend(argv.iter().cloned());
        self.server.send(&words);
        let push_all = |push: &mut dyn FnMut(&[u8])| argv.iter().for_each(|argument| push(argument));
        let reply = self.scripts.run(&mut self.keyspace, script, key, self.now, push_all);
        words[1] = script.name.into(); // for those who read it
        let answer = reply.clone().map_or_else(Answer::Error, Answer::Numbers);
        self.expect(words, answer);
        reply
    }

    /// Executes a command on a key.
    pub(crate) fn command(&mut self, words: &[&[u8]]) {
        self.server.send(words);
        let key = std::str::from_utf8(words[1]).expect("keys are text");
        self.keyspace.begin(self.now);
        let answer = match self.keyspace.execute(words[0], key, &words[2..]) {
            Reply::Integer(number) => Answer::Number(number),
            Reply::Strings(strings) => {
                Answer::Strings(strings.iter().map(|string| string.as_ref().map(|bytes| bytes.to_vec())).collect())
            }
            Reply::Error(error) => Answer::Error(error),
        };
        self.expect(words.iter().map(|word| word.to_vec()).collect(), answer);
    }

    /// Makes a key one of another type, by SET, LPUSH or SADD.
    pub(crate) fn replace(&mut self, command: &str, key: &str) {
        self.command(&[b"DEL", key.as_bytes()]);
        let words = [command, key, "x"];
        self.server.send(&words);
        self.keyspace.set_string(key, b"x");
        self.expect(words.map(|word| word.as_bytes().to_vec()).into(), Answer::Any);
    }

    /// Loses everything.
    pub(crate) fn flush(&mut self) {
        self.server.send(&["FLUSHALL"]);
        self.keyspace.flush();
        self.expect(vec![b"FLUSHALL".to_vec()], Answer::Any);
    }

    fn expect(&mut self, words: Vec<Vec<u8>>, answer: Answer) {
        self.asked.push_back(Operation { now: self.now, words, answer });
        self.open += 1;
    }

    /// Receives and compares what is open.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        while self.open > 0 {
            let real = self.server.receive();
            let place = self.asked.len() - self.open;
            if !self.asked[place].is_answered(&real) {
                return Err(format!("{}the real server: {real:?}", self.told(place)));
            }
            self.open -= 1;
        }
        while self.asked.len() > TOLD {
            self.asked.pop_front();
        }
        Ok(())
    }

    fn told(&self, place: usize) -> String {
        let mut text = String::new();
        for Operation { now, words, answer } in self.asked.range(..=place) {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            let _ = writeln!(text, "at {now}: {words:?}\n  {answer:?}");
        }
        text
    }

    /// Compares all keys with their fields, values and expiries, and says how many there are.
    pub(crate) fn compare(&mut self) -> Result<usize, String> {
        self.settle()?;
        let mut keys = strings(&self.server.ask(&["KEYS", "*"]));
        keys.sort();
        let there = |key: &&str| self.expires_at(key).is_none_or(|at| self.now < at);
        let ours: Vec<&str> = self.keyspace.keys().map(|key| &**key).filter(there).collect();
        if !keys.iter().map(Vec::as_slice).eq(ours.iter().map(|key| key.as_bytes())) {
            return Err(format!("{}keys differ: {ours:?}", self.told(self.asked.len() - 1)));
        }
        for key in &ours {
            let (seen, real) = (self.keyspace.get(key).map(Held::ours), Held::real(&mut self.server, key));
            if seen.as_ref() != Some(&real) {
                let told = self.told(self.asked.len() - 1);
                return Err(format!("{told}{key} holds {seen:?}\nin the real server {real:?}"));
            }
        }
        Ok(keys.len())
    }
}

impl Held {
    fn ours(entry: &Entry) -> Self {
        let fields = entry.fields().map(|(field, value)| (field.to_vec(), value.to_vec()));
        Self { expires: entry.expires_ms().unwrap_or(-1), fields: fields.collect() }
    }

    fn real(server: &mut Server, key: &str) -> Self {
        let expires = server.ask(&["PEXPIRETIME", key]).as_integer().expect("redis-server of version 7 or later");
        let words = server.ask(&["HGETALL", key]);
        let words = if matches!(words, Value::Error(_)) { Vec::new() } else { strings(&words) };
        let fields = words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        Self { expires, fields: fields.collect() }
    }
}

fn strings(list: &Value) -> Vec<Vec<u8>> {
    let list = list.as_array().unwrap_or_else(|| panic!("{list:?} is no list"));
    list.iter().map(|word| word.as_bytes().expect("strings").to_vec()).collect()
}
