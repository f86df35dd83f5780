//! The shipped scripts, run on a [`Keyspace`] and a clock that is passed in: by the interpreter of LuaJIT,
//! which is quicker than that of Lua 5.1 in Redis and has its language. Nothing is compiled.
//!
//! Decides nothing itself: what a script may name is in `lua/environment.rs`, what its commands do
//! in `keyspace.rs`, and `tests/differential` holds all three to a real server. Called by the
//! world for each call that reaches a server. Mutants of the scripts are made here too.

mod environment;

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use mlua::{Error, Function, Lua, LuaOptions, StdLib, Table, Value};
use rationd::store::script::{self, Script};

use self::environment::Server;
use crate::keyspace::Keyspace;

/// An interpreter with every script compiled.
#[derive(Debug)]
pub struct Scripts {
    compiled: Vec<(&'static str, Function)>,
    server: Rc<RefCell<Server>>,
    keys: Table,
    argv: Table,
    /// What is in `argv`, and how much of that the last run filled.
    arguments: Vec<Vec<u8>>,
    filled: usize,
    /// Functions and tables do not keep their interpreter.
    _lua: Lua,
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}

impl Scripts {
    /// The scripts as they are shipped.
    #[must_use]
    pub fn new() -> Self {
        Self::edited(&[])
    }

    /// Mutants: the scripts with each text replaced wherever it stands, one edit after the other.
    ///
    /// # Panics
    /// If a text is found in none of the scripts, or what comes out is no Lua.
    #[must_use]
    pub fn edited(edits: &[(&str, &str)]) -> Self {
        let mut texts = script::all().map(|script| (script.name, script.text.to_owned()));
        for (from, to) in edits {
            assert!(texts.iter().any(|(_, text)| text.contains(from)), "no script says `{from}`");
            texts = texts.map(|(name, text)| (name, text.replace(from, to)));
        }
        Self::compile(&texts).unwrap_or_else(|error| panic!("a script that does not compile: {error}"))
    }

    fn compile(texts: &[(&'static str, String)]) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::new())?;
        let (keys, argv) = (lua.create_table()?, lua.create_table()?);
        let server = Rc::new(RefCell::new(Server::default()));
        let names = environment::guarded(&lua, &server, [("KEYS", &keys), ("ARGV", &argv)])?;
        let mut compiled = Vec::new();
        for (name, text) in texts {
            let function = lua.load(text).set_name("@user_script").into_function()?;
            function.set_environment(names.clone())?;
            compiled.push((*name, function));
        }
        Ok(Self { compiled, server, keys, argv, arguments: Vec::new(), filled: 0, _lua: lua })
    }

    /// Runs a script on a key at a time of the server's clock. `arguments` gets the function that
    /// takes ARGV, one after the other, which is what [`script::arguments`] wants.
    ///
    /// # Errors
    /// Redis' error line, such as `ERR rationd: ...`. Also for an answer that is no array of
    /// integers, which none of the shipped scripts gives.
    pub fn run(
        &mut self,
        keyspace: &mut Keyspace,
        script: &Script,
        key: &str,
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<i64>, String> {
        self.fill(key, arguments).map_err(|error| error_line(&error))?;
        let compiled = self.compiled.iter().find(|(name, _)| *name == script.name);
        let (_, function) = compiled.ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
        // The callbacks of the interpreter own the server, so the keyspace visits it.
        self.server.borrow_mut().enter(mem::take(keyspace), key, now_us);
        let reply = function.call::<Value>(());
        *keyspace = self.server.borrow_mut().leave();
        integers(&reply.map_err(|error| error_line(&error))?)
    }

    /// Sets KEYS and ARGV in the tables of the last run.
    fn fill(&mut self, key: &str, arguments: impl FnOnce(&mut dyn FnMut(&[u8]))) -> mlua::Result<()> {
        self.keys.raw_seti(1, key)?;
        let (mut place, mut outcome) = (0, Ok(()));
        arguments(&mut |argument| {
            if place == self.arguments.len() {
                self.arguments.push(Vec::new());
            }
            // Limits and flags are the same in most calls. No script writes to ARGV.
            let known = &mut self.arguments[place];
            place += 1;
            if outcome.is_ok() && (place > self.filled || known != argument) {
                outcome = environment::set(&self.argv, place, argument);
                known.clear();
                known.extend_from_slice(argument);
            }
        });
        for rest in (place + 1..=self.filled).rev() {
            self.argv.raw_seti(rest, Value::Nil)?;
        }
        self.filled = place;
        outcome
    }
}

/// A script's answer as Redis sends it: numbers cut to integers, an array up to its first nil.
fn integers(reply: &Value) -> Result<Vec<i64>, String> {
    let Value::Table(table) = reply else { return Err(format!("ERR a script answered {reply:?}")) };
    if let Ok(Some(error)) = table.raw_get::<Option<String>>("err") {
        return Err(error);
    }
    let mut numbers = Vec::with_capacity(10); // those of one limit
    let all = table.for_each_value(|value| {
        numbers.push(match value {
            Value::Integer(number) => number,
            Value::Number(number) => number as i64, // towards zero, as in Redis
            other => return Err(Error::RuntimeError(format!("ERR a script answered an array with {other:?}"))),
        });
        Ok(())
    });
    all.map(|()| numbers).map_err(|error| error_line(&error))
}

/// Redis' error line for a script that failed: one line, and `ERR` where the text has no code.
fn error_line(error: &Error) -> String {
    let text = match error {
        Error::CallbackError { cause, .. } => return error_line(cause),
        Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    let code = line.split(' ').next().unwrap_or_default();
    let coded = code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    if coded { line.to_owned() } else { format!("ERR {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's clock: half a millisecond after a whole second.
    const NOW: u64 = 1_800_000_000_000_500;
    const PEEK: [&str; 4] = ["0", "n", "0", "f 10 1000000 10"];

    fn script(name: &str) -> &'static Script {
        script::all().into_iter().find(|script| script.name == name).expect("a script")
    }

    fn run(scripts: &mut Scripts, keyspace: &mut Keyspace, name: &str, argv: &[&str]) -> Result<Vec<i64>, String> {
        scripts.run(keyspace, script(name), "k", NOW, |push| argv.iter().for_each(|text| push(text.as_bytes())))
    }

    fn acquire(scripts: &mut Scripts, keyspace: &mut Keyspace) -> Vec<i64> {
        let argv = ["0", "n", "7 2 4 0 0 0 0", "f 10 1000000 10 0 0 0"];
        run(scripts, keyspace, "acquire", &argv).unwrap()
    }

    /// Peek, doing this instead.
    fn peek(body: &str) -> Result<Vec<i64>, String> {
        let first = "local limits, has_gcra = {}, false";
        let mut scripts = Scripts::edited(&[(first, &format!("do {body} end {first}"))]);
        run(&mut scripts, &mut Keyspace::default(), "peek", &PEEK)
    }

    #[test]
    fn acquire_lends_and_writes() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        let now = NOW as i64;
        let end = (now / 1_000_000 + 1) * 1_000_000;
        assert_eq!(acquire(&mut scripts, &mut keyspace), [4, 0, 0, 7, 0, 1, now, 4, 0, end]);
        assert_eq!(acquire(&mut scripts, &mut keyspace), [4, 1, 0, 7, 0, 1, now, 4, 0, end]);
        let entry = keyspace.get("k").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields: Vec<_> = entry.fields().map(|(field, value)| (text(field), text(value))).collect();
        assert_eq!(fields.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), ["c", "e", "f1", "n:n"]);
        assert_eq!(fields[2].1, format!("4 0 {end}"));
        assert_eq!(entry.expires_ms(), Some(now / 1_000 + 2_001));
    }

    #[test]
    fn shorter_argv_leaves_nothing_of_a_longer_one() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        acquire(&mut scripts, &mut keyspace);
        assert_eq!(run(&mut scripts, &mut keyspace, "peek", &PEEK).unwrap()[7], 4);
        let wrong = run(&mut scripts, &mut keyspace, "peek", &PEEK[..3]);
        assert!(wrong.unwrap_err().starts_with("ERR rationd: wrong arguments"));
    }

    #[test]
    fn replies_are_converted_as_in_redis() {
        assert_eq!(peek("return {1, 2.9, -2.9, nil, 5}"), Ok(vec![1, 2, -2]));
        assert_eq!(peek("return {redis.call('HMGET', hash, 'a')[1] == false and 1 or 0}"), Ok(vec![1]));
        assert_eq!(
            peek("local t = redis.call('TIME') return {#t, t[1] + 0, t[2] + 0}"),
            Ok(vec![2, 1_800_000_000, 500])
        );
        assert_eq!(peek("return redis.error_reply('BUSY now')"), Err("BUSY now".into()));
        assert_eq!(peek("return redis.error_reply('-oops')"), Err("ERR oops".into()));
        assert!(peek("return redis.status_reply('OK')").unwrap().is_empty());
    }

    #[test]
    fn script_that_leaves_its_world_is_an_error() {
        let own = "redis.call('HINCRBY', hash, 'a', '1')";
        for body in
            [own, "x = 1", "return x", "pairs({})", "math.random()", "redis.call('DEL', 'other')", "redis.sha1hex('')"]
        {
            let error = peek(body).unwrap_err();
            assert!(error.starts_with("ERR ") && !error.contains('\n'), "{body}: {error}");
        }
        assert!(peek("return redis.pcall('HINCRBY', hash, 'a', '1')").unwrap_err().contains("HINCRBY"));
    }

    #[test]
    fn wrong_type_is_told_to_pcall_and_fails_call() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        keyspace.set_string("k", b"x");
        let reply = run(&mut scripts, &mut keyspace, "peek", &PEEK).unwrap();
        assert_eq!(reply[2], 1, "told as damaged");
        let mut call = Scripts::edited(&[("redis.pcall", "redis.call")]);
        assert!(run(&mut call, &mut keyspace, "peek", &PEEK).unwrap_err().starts_with("WRONGTYPE "));
    }

    #[test]
    #[should_panic(expected = "no script says `granted = 8`")]
    fn edit_that_finds_nothing_panics() {
        let _ = Scripts::edited(&[("granted = 8", "")]);
    }
}
