//! The shipped scripts, run by Lua 5.1 as Redis runs them, on a [`Keyspace`] and a clock that is
//! passed in.
//!
//! Redis' world is built small on purpose: a script that names another command, another key or a
//! function whose result is not certain (`pairs`, `math.random`) gets an error here, so that nobody
//! begins to use one unnoticed. `tests/differential.rs` holds replies and writes to a real server's.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Error, Function, IntoLua, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use rationd::store::script::{self, Script};

use crate::keyspace::{Keyspace, Reply};

/// What scripts may name of Lua's own.
const NAMES: [&str; 15] = [
    "assert", "error", "ipairs", "pcall", "rawequal", "rawget", "rawset", "select", "string", "table", "tonumber",
    "tostring", "type", "unpack", "xpcall",
];

/// What is said to a script that names something else.
const GUARD: &str = "
    local known = ...
    setmetatable(known, { __index = function(_, name)
        error(\"Script attempted to access nonexistent global variable '\" .. tostring(name) .. \"'\", 2)
    end })
    return setmetatable({}, { __index = known, __newindex = function(_, name)
        error('Attempt to modify a readonly table', 2)
    end, __metatable = false })";

/// An interpreter with every script compiled.
#[derive(Debug)]
pub struct Scripts {
    compiled: Vec<(&'static str, Function)>,
    server: Rc<RefCell<Server>>,
    keys: Table,
    argv: Table,
    /// Filled places of `argv`.
    filled: usize,
    lua: Lua,
}

/// What `redis.call` reaches while a script runs.
#[derive(Debug, Default)]
struct Server {
    keyspace: Keyspace,
    key: String,
    now: u64,
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

    /// The scripts with each text replaced wherever it stands: mutants.
    ///
    /// # Panics
    /// If a text is found in none of the scripts, or what comes out is no Lua.
    #[must_use]
    pub fn edited(edits: &[(&str, &str)]) -> Self {
        for (text, _) in edits {
            assert!(script::all().iter().any(|script| script.text.contains(text)), "no script says `{text}`");
        }
        let edit =
            |script: &Script| edits.iter().fold(script.text.to_owned(), |text, (from, to)| text.replace(from, to));
        Self::compile(script::all().map(|script| (script.name, edit(script)))).expect("scripts that compile")
    }

    fn compile(texts: [(&'static str, String); 5]) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::new())?;
        let (keys, argv) = (lua.create_table()?, lua.create_table()?);
        let server = Rc::new(RefCell::new(Server::default()));
        let names = environment(&lua, &server)?;
        names.raw_set("KEYS", &keys)?;
        names.raw_set("ARGV", &argv)?;
        let guarded: Table = lua.load(GUARD).call(names)?;
        let mut compiled = Vec::new();
        for (name, text) in texts {
            let function = lua.load(text).set_name("@user_script").into_function()?;
            function.set_environment(guarded.clone())?;
            compiled.push((name, function));
        }
        Ok(Self { compiled, server, keys, argv, filled: 0, lua })
    }

    /// Runs a script on a key at a time of the server's clock. `arguments` is told where to put each
    /// argument, as [`script::arguments`] wants it.
    ///
    /// # Errors
    /// Redis' error line, such as `ERR rationd: ...`; or what a script answered that is no array of
    /// integers.
    pub fn run(
        &mut self,
        keyspace: &mut Keyspace,
        script: &Script,
        key: &str,
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<i64>, String> {
        self.fill(key, arguments).map_err(|error| line(&error))?;
        let name = script.name;
        let (_, function) = self.compiled.iter().find(|(known, _)| *known == name).ok_or("NOSCRIPT")?;
        self.server.borrow_mut().enter(keyspace, key, now_us);
        let reply = function.call::<Value>(());
        std::mem::swap(&mut self.server.borrow_mut().keyspace, keyspace);
        integers(&reply.map_err(|error| line(&error))?)
    }

    /// Sets KEYS and ARGV; the tables are those of the last run.
    fn fill(&mut self, key: &str, arguments: impl FnOnce(&mut dyn FnMut(&[u8]))) -> mlua::Result<()> {
        self.keys.raw_seti(1, key)?;
        let (mut place, mut outcome) = (0, Ok(()));
        arguments(&mut |argument| {
            place += 1;
            if outcome.is_ok() {
                outcome = set(&self.argv, place, argument);
            }
        });
        for rest in (place + 1..=self.filled).rev() {
            self.argv.raw_seti(rest, Value::Nil)?;
        }
        self.filled = place;
        outcome
    }
}

impl Server {
    fn enter(&mut self, keyspace: &mut Keyspace, key: &str, now_us: u64) {
        std::mem::swap(&mut self.keyspace, keyspace);
        self.keyspace.begin(now_us);
        self.key.clear();
        self.key.push_str(key);
        self.now = now_us;
    }

    /// A command with its arguments, or the error that Redis answers.
    fn command(&mut self, words: &MultiValue) -> Result<Reply, String> {
        let mut bytes = Vec::with_capacity(words.len());
        for word in words {
            let Value::String(word) = word else { return Err(format!("ERR simulations pass strings, not {word:?}")) };
            bytes.push(word.as_bytes());
        }
        let reply = match bytes.as_slice() {
            [command] if **command == *b"TIME" => return Ok(self.time()),
            [command, key, rest @ ..] if **key == *self.key.as_bytes() => {
                self.keyspace.execute(command, &self.key, rest)
            }
            [command, ..] => {
                let command = String::from_utf8_lossy(command);
                return Err(format!("ERR {command} names a key that KEYS does not"));
            }
            [] => return Err("ERR Please specify at least one argument for this redis.call call".into()),
        };
        if let Reply::Error(error) = reply { Err(error) } else { Ok(reply) }
    }

    fn time(&self) -> Reply {
        let parts = [self.now / 1_000_000, self.now % 1_000_000];
        Reply::Strings(parts.iter().map(|part| Some(part.to_string().as_bytes().into())).collect())
    }
}

/// Everything that a script may name but KEYS and ARGV.
fn environment(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Table> {
    let names = lua.create_table()?;
    for name in NAMES {
        names.raw_set(name, lua.globals().raw_get::<Value>(name)?)?;
    }
    let math: Table = lua.globals().raw_get("math")?;
    math.raw_remove("random")?;
    math.raw_remove("randomseed")?;
    names.raw_set("math", math)?;
    let redis = lua.create_table()?;
    let shared = server.clone();
    let call = move |lua: &Lua, words: MultiValue| {
        let reply = shared.borrow_mut().command(&words).map_err(Error::RuntimeError)?;
        value(lua, reply)
    };
    redis.raw_set("call", lua.create_function(call)?)?;
    let shared = server.clone();
    let pcall = move |lua: &Lua, words: MultiValue| match shared.borrow_mut().command(&words) {
        Ok(reply) => value(lua, reply),
        Err(error) => status(lua, "err", &error),
    };
    redis.raw_set("pcall", lua.create_function(pcall)?)?;
    // Redis puts ERR before a message of one word.
    let error_reply = |lua: &Lua, text: String| {
        let text = text.strip_prefix('-').unwrap_or(&text);
        let code = if text.contains(' ') { "" } else { "ERR " };
        status(lua, "err", &format!("{code}{text}"))
    };
    redis.raw_set("error_reply", lua.create_function(error_reply)?)?;
    redis.raw_set("status_reply", lua.create_function(|lua, text: String| status(lua, "ok", &text))?)?;
    names.raw_set("redis", redis)?;
    Ok(names)
}

fn status(lua: &Lua, field: &str, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(field, text)?;
    Ok(Value::Table(table))
}

/// A reply as Redis converts it: nil is false.
fn value(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    match reply {
        Reply::Integer(number) => number.into_lua(lua),
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
        Reply::Error(error) => status(lua, "err", &error),
    }
}

/// Text takes a shorter way into Lua than bytes do.
fn set(table: &Table, place: usize, bytes: &[u8]) -> mlua::Result<()> {
    match std::str::from_utf8(bytes) {
        Ok(text) => table.raw_seti(place, text),
        Err(_) => table.raw_seti(place, LuaString::wrap(bytes)),
    }
}

/// A script's answer as Redis sends it: numbers cut to integers, an array up to its first nil.
fn integers(reply: &Value) -> Result<Vec<i64>, String> {
    let Value::Table(table) = reply else { return Err(format!("ERR a script answered {reply:?}")) };
    if let Ok(error) = table.raw_get::<String>("err") {
        return Err(error);
    }
    let mut numbers = Vec::with_capacity(10);
    let cut = table.for_each_value(|value: Value| match value {
        Value::Integer(number) => {
            numbers.push(number);
            Ok(())
        }
        Value::Number(number) => {
            numbers.push(number as i64); // towards zero, as in Redis
            Ok(())
        }
        other => Err(Error::RuntimeError(format!("a script answered an array with {other:?}"))),
    });
    cut.map(|()| numbers).map_err(|error| line(&error))
}

/// Redis' error line for a script that failed.
fn line(error: &Error) -> String {
    match error {
        Error::CallbackError { cause, .. } => line(cause),
        Error::RuntimeError(text) => {
            let first = text.lines().next().unwrap_or_default();
            let coded = first
                .split(' ')
                .next()
                .is_some_and(|word| word.len() > 2 && !word.contains(|c: char| !c.is_ascii_uppercase()));
            if coded { first.to_owned() } else { format!("ERR {first}") }
        }
        other => format!("ERR {other}"),
    }
}
