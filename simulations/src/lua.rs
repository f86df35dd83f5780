//! The shipped scripts in a Lua 5.1 interpreter, as Redis runs them.
//!
//! Each text is compiled once. `redis.call` reaches a [`Keyspace`] and nothing else; a command that
//! no script used before is an error, and so is a global that a script sets. Time is the server's
//! clock and comes in. `tests/differential.rs` compares all of it with a real server.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use rationd::core::call::Call;
use rationd::store::script::{self, Caller, Script};

use crate::keyspace::Keyspace;

/// What `redis.call` works on while a script runs.
#[derive(Default)]
struct Server {
    keyspace: Keyspace,
    now: u64,
}

/// The interpreter with all scripts.
pub struct Scripts {
    lua: Lua,
    functions: Vec<(&'static str, Function)>,
    server: Rc<RefCell<Server>>,
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}

impl Scripts {
    /// The scripts as they are shipped.
    ///
    /// # Panics
    /// When a script does not compile.
    #[must_use]
    pub fn new() -> Self {
        Self::edited(&[])
    }

    /// The scripts with some texts replaced, in whichever of them they stand: deliberate bugs.
    ///
    /// # Panics
    /// When a text stands in none of them, or what comes out does not compile.
    #[must_use]
    pub fn edited(edits: &[(&str, &str)]) -> Self {
        let lua = Lua::new();
        let server = Rc::new(RefCell::new(Server::default()));
        install(&lua, &server).expect("an interpreter takes functions");
        for (text, _) in edits {
            assert!(script::all().iter().any(|script| script.text.contains(text)), "no script contains: {text}");
        }
        let compile = |script: &Script| {
            let text = edits.iter().fold(script.text.to_owned(), |text, (from, to)| text.replace(from, to));
            lua.load(text).set_name(script.name).into_function().expect("a script that compiles")
        };
        let functions = script::all().iter().map(|script| (script.name, compile(script))).collect();
        Self { lua, functions, server }
    }

    /// Runs the script of a call on the hash called `key`, by the server's clock `now`
    /// (microseconds) unless the caller gives one.
    ///
    /// # Errors
    /// The line of the error with which the script answers.
    pub fn run(
        &mut self,
        keyspace: &mut Keyspace,
        caller: &Caller<'_>,
        call: &Call,
        key: &str,
        now: u64,
    ) -> Result<Vec<i64>, String> {
        let mut argv = Vec::with_capacity(24);
        script::arguments(caller, call, &mut |argument| argv.push(argument.to_owned()));
        self.eval(keyspace, Script::of(&call.op).name, key, now, &argv)
    }

    /// Runs a script with these arguments.
    ///
    /// # Errors
    /// The line of the error with which the script answers.
    ///
    /// # Panics
    /// When there is no such script.
    pub fn eval(
        &mut self,
        keyspace: &mut Keyspace,
        script: &str,
        key: &str,
        now: u64,
        argv: &[Vec<u8>],
    ) -> Result<Vec<i64>, String> {
        let found = self.functions.iter().find(|(name, _)| *name == script);
        let function = &found.expect("a script of the list").1;
        {
            let mut server = self.server.borrow_mut();
            std::mem::swap(&mut server.keyspace, keyspace);
            server.now = now;
        }
        let reply = self.prepare(key, argv).and_then(|()| function.call::<Value>(()));
        std::mem::swap(&mut self.server.borrow_mut().keyspace, keyspace);
        match reply {
            Ok(Value::Table(table)) => integers(&table),
            Ok(other) => Err(format!("a script answered {other:?}, and no array")),
            Err(error) => Err(format!("ERR {error}")),
        }
    }

    fn prepare(&self, key: &str, argv: &[Vec<u8>]) -> mlua::Result<()> {
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.lua.create_sequence_from([key])?)?;
        let strings = argv.iter().map(|argument| self.lua.create_string(argument));
        let strings = strings.collect::<mlua::Result<Vec<_>>>()?;
        globals.raw_set("ARGV", self.lua.create_sequence_from(strings)?)
    }
}

/// A reply as Redis reads it: up to the first nil, numbers cut to integers.
fn integers(table: &Table) -> Result<Vec<i64>, String> {
    if let Ok(Some(error)) = table.raw_get::<Option<String>>("err") {
        return Err(error);
    }
    let mut list = Vec::with_capacity(16);
    for place in 1.. {
        match table.raw_get(place) {
            Ok(Value::Integer(value)) => list.push(value),
            Ok(Value::Number(value)) => list.push(value as i64), // as Redis does
            Ok(Value::Nil) => break,
            other => return Err(format!("a script answered {other:?} at place {place}")),
        }
    }
    Ok(list)
}

fn install(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    let at = server.clone();
    let call = lua.create_function(move |lua, arguments: MultiValue| match command(lua, &at, &arguments)? {
        Ok(value) => Ok(value),
        Err(line) => Err(mlua::Error::RuntimeError(line)),
    })?;
    let at = server.clone();
    let pcall = lua.create_function(move |lua, arguments: MultiValue| match command(lua, &at, &arguments)? {
        Ok(value) => Ok(value),
        Err(line) => error_reply(lua, &line),
    })?;
    redis.set("call", call)?;
    redis.set("pcall", pcall)?;
    redis.set("error_reply", lua.create_function(|lua, line: String| error_reply(lua, &line))?)?;
    let globals = lua.globals();
    globals.set("redis", redis)?;
    let guard = lua.create_table()?;
    let refuse = |_: &Lua, (_, name): (Value, String)| -> mlua::Result<()> {
        Err(mlua::Error::RuntimeError(format!("Script attempted to access nonexistent global variable '{name}'")))
    };
    guard.set("__newindex", lua.create_function(refuse)?)?;
    guard.set("__index", lua.create_function(refuse)?)?;
    globals.set_metatable(Some(guard))
}

fn error_reply(lua: &Lua, line: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.set("err", line)?;
    Ok(Value::Table(table))
}

/// What a command answers: a value, or the line of an error.
type Answer = Result<Value, String>;

/// Carries out one command of a script.
fn command(lua: &Lua, server: &RefCell<Server>, arguments: &MultiValue) -> mlua::Result<Answer> {
    let mut words = Vec::with_capacity(arguments.len());
    for argument in arguments {
        words.push(match argument {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Integer(value) => value.to_string().into_bytes(),
            other => return Ok(Err(format!("ERR a script gave {other:?} to a command"))),
        });
    }
    let server = &mut *server.borrow_mut();
    let (keyspace, now) = (&mut server.keyspace, server.now);
    let key = words.get(1).map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
    let rest = words.get(2..).unwrap_or_default();
    let number = |value: Result<u64, &'static str>| value.map(|value| Value::Integer(value as i64));
    let answer = match words.first().map(Vec::as_slice) {
        Some(b"TIME") => return Ok(Ok(time(lua, now)?)),
        Some(b"HMGET") => return many(lua, keyspace, &key, rest, now),
        Some(b"HKEYS") => match keyspace.fields(&key, now) {
            Ok(fields) => return strings(lua, &fields).map(Ok),
            Err(line) => Err(line),
        },
        Some(b"HLEN") => number(keyspace.fields(&key, now).map(|fields| fields.len() as u64)),
        Some(b"HSET") => {
            let pairs = rest.chunks_exact(2).map(|pair| keyspace.set(&key, &pair[0], &pair[1], now));
            number(pairs.sum())
        }
        Some(b"HDEL") => number(rest.iter().map(|field| keyspace.unset(&key, field, now)).sum()),
        Some(b"DEL") => number(Ok(keyspace.delete(&key, now))),
        Some(b"PEXPIRE") => {
            let millis =
                rest.first().and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok());
            let Some(millis) = millis else { return Ok(Err("ERR value is not an integer or out of range".into())) };
            number(Ok(keyspace.expire(&key, millis, now)))
        }
        other => return Ok(Err(format!("ERR the model has no command {other:?}"))),
    };
    Ok(answer.map_err(str::to_owned))
}

fn time(lua: &Lua, now: u64) -> mlua::Result<Value> {
    let parts = [(now / 1_000_000).to_string(), (now % 1_000_000).to_string()];
    Ok(Value::Table(lua.create_sequence_from(parts)?))
}

fn strings(lua: &Lua, list: &[Vec<u8>]) -> mlua::Result<Value> {
    let strings = list.iter().map(|text| lua.create_string(text)).collect::<mlua::Result<Vec<_>>>()?;
    Ok(Value::Table(lua.create_sequence_from(strings)?))
}

/// `HMGET`: what is missing is false.
fn many(lua: &Lua, keyspace: &Keyspace, key: &str, fields: &[Vec<u8>], now: u64) -> mlua::Result<Answer> {
    let mut values = Vec::with_capacity(fields.len());
    for field in fields {
        values.push(match keyspace.get(key, field, now) {
            Ok(Some(value)) => Value::String(lua.create_string(value)?),
            Ok(None) => Value::Boolean(false),
            Err(line) => return Ok(Err(line.to_owned())),
        });
    }
    Ok(Ok(Value::Table(lua.create_sequence_from(values)?)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::call::{Acquire, Op};
    use rationd::core::key::Digest;
    use rationd::core::limit::{Limit, MAX_HORIZON};
    use rationd::core::policy::Rule;
    use rationd::core::time::{Instant, Timestamp};

    use super::*;

    const NOW: u64 = 1_800_000_000_250_000;

    fn acquire(want: u32) -> Call {
        let ask = Acquire { need: want, want, least: 1, ahead_of: Timestamp(0), epoch: 0, known: Default::default() };
        let rule = Arc::new(Rule::of("p", &[Limit::parse("10/1s fixed").unwrap()]));
        Call { id: u64::from(want), digest: Digest(1), rule, op: Op::Acquire(ask), sent_at: Instant(0) }
    }

    fn run(scripts: &mut Scripts, keyspace: &mut Keyspace, want: u32) -> Result<Vec<i64>, String> {
        let caller = Caller { prefix: "s", node: "n", horizon: MAX_HORIZON, now: None };
        scripts.run(keyspace, &caller, &acquire(want), "s:{1}", NOW)
    }

    #[test]
    fn lends_what_is_left() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::new());
        let first = run(&mut scripts, &mut keyspace, 7).expect("a grant");
        assert_eq!((first[0], first[6], first[7]), (7, NOW as i64, 7));
        let second = run(&mut scripts, &mut keyspace, 8).expect("a grant");
        assert_eq!(second[0], 3);
    }

    #[test]
    fn edits_change_what_it_does() {
        let mut scripts = Scripts::edited(&[("limit.count - spent", "limit.count + 1 - spent")]);
        let reply = run(&mut scripts, &mut Keyspace::new(), 100).expect("a grant");
        assert_eq!(reply[0], 11);
    }

    #[test]
    fn a_wrong_argument_is_the_scripts_own_error() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::new());
        let error = scripts.eval(&mut keyspace, "peek", "k", NOW, &[b"x".to_vec()]).unwrap_err();
        assert!(error.starts_with("ERR rationd: wrong arguments"), "{error}");
    }
}
