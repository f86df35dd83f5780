//! What a script may name: KEYS, ARGV, `redis` and some of Lua's own.
//!
//! It is less than Redis offers, on purpose: another command, a key that KEYS does not name, a
//! number passed to a command, and functions whose results no replay repeats (`pairs`,
//! `math.random`) are errors, so that no script begins to use one unnoticed.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use mlua::{Error, IntoLua, Lua, LuaString, MultiValue, Table, Value};

mod binary;

use crate::keyspace::{Keyspace, Reply};

const NAMES: [&str; 16] = [
    "assert", "error", "ipairs", "math", "pcall", "rawequal", "rawget", "rawset", "select", "string", "table",
    "tonumber", "tostring", "type", "unpack", "xpcall",
];

/// Nobody sets a global, nor reads one that is not there, in Redis' words.
const GUARD: &str = "
    local names, setmetatable, error = ...
    setmetatable(names, { __index = function(_, name)
        error('Script attempted to access nonexistent global variable \\'' .. name .. '\\'', 2)
    end })
    return setmetatable({}, { __index = names, __newindex = function(_, name)
        error('Attempt to modify a readonly table', 2)
    end })";

/// What `redis.call` reaches while a script runs.
#[derive(Debug, Default)]
pub(super) struct Server {
    keyspace: Keyspace,
    key: String,
    now: u64,
}

impl Server {
    /// Begins a script on a key.
    pub(super) fn enter(&mut self, keyspace: Keyspace, key: &str, now_us: u64) {
        self.keyspace = keyspace;
        self.keyspace.begin(now_us);
        self.key.clear();
        self.key.push_str(key);
        self.now = now_us;
    }

    /// The keyspace as the script left it.
    pub(super) fn leave(&mut self) -> Keyspace {
        mem::take(&mut self.keyspace)
    }

    /// Executes a command; errors are Redis' lines.
    fn command(&mut self, words: &MultiValue) -> Result<Reply, String> {
        let mut bytes = Vec::with_capacity(words.len());
        for word in words {
            let Value::String(word) = word else { return Err(format!("ERR a command was passed {word:?}")) };
            bytes.push(word.as_bytes());
        }
        let reply = match bytes.as_slice() {
            [name] if **name == *b"TIME" => self.time(),
            [name, key, rest @ ..] if **key == *self.key.as_bytes() => self.keyspace.execute(name, &self.key, rest),
            _ => return Err("ERR a command without the key that KEYS names".into()),
        };
        if let Reply::Error(error) = reply { Err(error) } else { Ok(reply) }
    }

    fn time(&self) -> Reply {
        let parts = [self.now / 1_000_000, self.now % 1_000_000];
        Reply::Strings(parts.iter().map(|part| Some(part.to_string().as_bytes().into())).collect())
    }
}

/// The environment of every script, with these tables in it.
pub(super) fn guarded(lua: &Lua, server: &Rc<RefCell<Server>>, tables: [(&str, &Table); 2]) -> mlua::Result<Table> {
    let (globals, names) = (lua.globals(), lua.create_table()?);
    for name in NAMES {
        names.raw_set(name, globals.raw_get::<Value>(name)?)?;
    }
    for name in ["random", "randomseed"] {
        names.raw_get::<Table>("math")?.raw_remove(name)?;
    }
    for (name, table) in tables {
        names.raw_set(name, table)?;
    }
    names.raw_set("redis", redis(lua, server)?)?;
    names.raw_set("struct", binary::library(lua)?)?;
    let (setmetatable, error): (Value, Value) = (globals.raw_get("setmetatable")?, globals.raw_get("error")?);
    lua.load(GUARD).call((names, setmetatable, error))
}

fn redis(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    let reached = server.clone();
    let call = move |lua: &Lua, words: MultiValue| {
        let reply = reached.borrow_mut().command(&words);
        value(lua, reply.map_err(Error::RuntimeError)?)
    };
    redis.raw_set("call", lua.create_function(call)?)?;
    let reached = server.clone();
    let pcall = move |lua: &Lua, words: MultiValue| {
        let reply = reached.borrow_mut().command(&words);
        value(lua, reply.unwrap_or_else(Reply::Error))
    };
    redis.raw_set("pcall", lua.create_function(pcall)?)?;
    redis.raw_set("error_reply", lua.create_function(|lua, text: String| single(lua, "err", &coded(&text)))?)?;
    redis.raw_set("status_reply", lua.create_function(|lua, text: String| single(lua, "ok", &text))?)?;
    Ok(redis)
}

/// Redis takes the first of several words as the error's code, and puts ERR before a single one.
fn coded(text: &str) -> String {
    let text = text.strip_prefix('-').unwrap_or(text);
    if text.contains(' ') { text.to_owned() } else { format!("ERR {text}") }
}

fn single(lua: &Lua, field: &str, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(field, text)?;
    Ok(Value::Table(table))
}

/// A reply as Redis converts it: nil is false.
fn value(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    match reply {
        Reply::Integer(number) => number.into_lua(lua),
        Reply::Error(error) => single(lua, "err", &error),
        Reply::Strings(strings) => {
            let table = lua.create_table_with_capacity(strings.len(), 0)?;
            for (index, string) in strings.iter().enumerate() {
                match string {
                    Some(string) => set(&table, index + 1, string)?,
                    None => table.raw_seti(index + 1, false)?,
                }
            }
            Ok(Value::Table(table))
        }
    }
}

/// Puts bytes into a table. Text has a shorter way into the interpreter than other bytes.
pub(super) fn set(table: &Table, place: usize, bytes: &[u8]) -> mlua::Result<()> {
    match std::str::from_utf8(bytes) {
        Ok(text) => table.raw_seti(place, text),
        Err(_) => table.raw_seti(place, LuaString::wrap(bytes)),
    }
}
