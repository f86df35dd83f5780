//! Scripts, run on a [`Keyspace`] and a clock that is passed in: by the interpreter of LuaJIT, which is quicker than
//! that of Lua 5.1 in Redis and has its language. Nothing is compiled.
//!
//! Decides nothing itself: what a script may name is in `scripts/environment.rs`, what its commands do in
//! `keyspace.rs`.

mod environment;

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use mlua::{Error, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use self::environment::Server;
use crate::keyspace::Keyspace;

/// An interpreter with every script compiled.
#[derive(Debug)]
pub struct Scripts {
    compiled: Vec<(&'static str, Function)>,
    /// Runs one of them at a time of the server's clock: seconds and microseconds.
    run: Function,
    server: Rc<RefCell<Server>>,
    keys: Table,
    argv: Table,
    /// What is in `argv`, and how much of that the last run filled.
    arguments: Vec<Vec<u8>>,
    filled: usize,
    /// Functions and tables do not keep their interpreter.
    _lua: Lua,
}

impl Scripts {
    /// Reads scripts, each with its name.
    ///
    /// # Errors
    /// One of them is no Lua: the interpreter's line.
    pub fn read(texts: &[(&'static str, String)]) -> Result<Self, String> {
        Self::compile(texts).map_err(|error| error.to_string())
    }

    fn compile(texts: &[(&'static str, String)]) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::new())?;
        let (keys, argv) = (lua.create_table()?, lua.create_table()?);
        let server = Rc::new(RefCell::new(Server::default()));
        let (names, run) = environment::guarded(&lua, &server, [("KEYS", &keys), ("ARGV", &argv)])?;
        let mut compiled = Vec::new();
        for (name, text) in texts {
            let function = lua.load(text).set_name("@user_script").into_function()?;
            function.set_environment(names.clone())?;
            compiled.push((*name, function));
        }
        Ok(Self { compiled, run, server, keys, argv, arguments: Vec::new(), filled: 0, _lua: lua })
    }

    /// Runs the script of that name on a key at a time of the server's clock. `arguments` gets the function that takes
    /// ARGV, one after the other. The answer is its numbers: text of seven bytes each, the lowest first, or an array of integers.
    ///
    /// # Errors
    /// Redis' error line, such as `ERR rationd: ...`. Also for an answer that is neither, which none of rationd's scripts gives.
    pub fn run(
        &mut self,
        keyspace: &mut Keyspace,
        script: &str,
        key: &str,
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<i64>, String> {
        numbers(&self.answer(keyspace, script, &[key], now_us, arguments)?)
    }

    /// The same on several keys, each of which is one of KEYS: what the script says of each, as text or as an error.
    ///
    /// # Errors
    /// Redis' error line for the whole. Also for an answer that is neither text, as long for each key, nor an array of texts and
    /// errors.
    pub fn run_many(
        &mut self,
        keyspace: &mut Keyspace,
        script: &str,
        keys: &[&str],
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<Result<Vec<u8>, String>>, String> {
        let answer = self.answer(keyspace, script, keys, now_us, arguments)?;
        match answer.iter().next() {
            Some(Value::String(text)) if answer.len() == 1 && text.as_bytes().len() % keys.len() == 0 => {
                let bytes = text.as_bytes();
                Ok(bytes.chunks_exact(bytes.len() / keys.len()).map(|bytes| Ok(bytes.to_vec())).collect())
            }
            _ if answer.len() == keys.len() => answer.iter().map(told).collect(),
            _ => Err(format!("ERR a script answered {} keys with {answer:?}", keys.len())),
        }
    }

    fn answer(
        &mut self,
        keyspace: &mut Keyspace,
        script: &str,
        keys: &[&str],
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<MultiValue, String> {
        self.fill(keys, arguments).map_err(|error| error_line(&error))?;
        let compiled = self.compiled.iter().find(|(name, _)| *name == script);
        let (_, function) = compiled.ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
        // The callbacks of the interpreter own the server, so the keyspace visits it.
        self.server.borrow_mut().enter(mem::take(keyspace), keys, now_us);
        let reply = self.run.call::<MultiValue>((function, now_us / 1_000_000, now_us % 1_000_000));
        *keyspace = self.server.borrow_mut().leave();
        reply.map_err(|error| error_line(&error))
    }

    /// Sets KEYS and ARGV in the tables of the last run.
    fn fill(&mut self, keys: &[&str], arguments: impl FnOnce(&mut dyn FnMut(&[u8]))) -> mlua::Result<()> {
        for (place, key) in keys.iter().enumerate() {
            self.keys.raw_seti(place + 1, *key)?;
        }
        for rest in (keys.len() + 1..=self.keys.raw_len()).rev() {
            self.keys.raw_seti(rest, Value::Nil)?;
        }
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

/// Bytes of a number in an answer that is text.
const WIDTH: usize = 7;

/// The numbers of a script's answer as Redis sends it: those that stand in its text, or of an array, up to its first nil, cut to
/// integers.
fn numbers(reply: &MultiValue) -> Result<Vec<i64>, String> {
    if let (Some(Value::String(text)), 1) = (reply.iter().next(), reply.len()) {
        let bytes = text.as_bytes();
        if !bytes.len().is_multiple_of(WIDTH) {
            return Err(format!("ERR a script answered {} bytes", bytes.len()));
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte));
        return Ok(bytes.chunks_exact(WIDTH).map(number).collect());
    }
    let mut numbers = Vec::with_capacity(reply.len());
    for value in reply.iter().take_while(|value| !value.is_nil()) {
        numbers.push(match value {
            Value::Integer(number) => *number,
            Value::Number(number) => *number as i64, // towards zero, as in Redis
            other => return Err(format!("ERR a script answered an array with {other:?}")),
        });
    }
    Ok(numbers)
}

/// What a script says of one of several keys.
fn told(value: &Value) -> Result<Result<Vec<u8>, String>, String> {
    match value {
        Value::String(text) => Ok(Ok(text.as_bytes().to_vec())),
        Value::Table(error) => error.raw_get("err").map(Err).map_err(|error| error_line(&error)),
        other => Err(format!("ERR a script answered an array with {other:?}")),
    }
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
