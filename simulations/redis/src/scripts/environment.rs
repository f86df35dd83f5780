//! What a script may name: KEYS, ARGV, `redis` and some of Lua's own.
//!
//! It is less than Redis offers, on purpose: another command, a key that KEYS does not name, and functions whose results
//! no replay repeats (`pairs`, `math.random`) are errors, so that no script begins to use one unnoticed.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use mlua::{BString, Either, Error, Function, Lua, LuaString, MultiValue, Table, Value, Variadic};

use crate::keyspace::{COMMANDS, Keyspace, Reply};

const NAMES: [&str; 16] = [
    "assert", "error", "ipairs", "math", "pcall", "rawequal", "rawget", "rawset", "select", "string", "table",
    "tonumber", "tostring", "type", "unpack", "xpcall",
];

/// Nobody sets a global, nor reads one that is not there, in Redis' words. One that is there could be set here, unlike in
/// Redis: to notice that, each script would read all its globals by way of a second table, which took a thirtieth of its
/// time. Who sets one is found out by the real server of `tests/differential`.
const GUARD: &str = "
    local names, setmetatable, error = ...
    return setmetatable(names, {
        __index = function(_, name)
            error('Script attempted to access nonexistent global variable \\'' .. name .. '\\'', 2)
        end,
        __newindex = function() error('Attempt to modify a readonly table', 2) end,
    })";

/// The library `struct`. It is passed Lua's globals.
const STRUCT: &str = include_str!("environment/struct.lua");

/// The library `redis`, and the function that runs a script. It is passed [`few`], [`many`], [`choose`], the places of [`COMMANDS`], the table
/// KEYS and Lua's globals.
const REDIS: &str = include_str!("environment/redis.lua");

/// A word of a command behind its key, or nothing where there are fewer. Taken from the interpreter without a handle of it, which costs
/// more than the word.
type Word = Option<BString>;

/// The words of a command: some as bytes, and handles of those behind them. Each place costs something, whether there is a
/// word for it or not, so most commands come as few and not as many.
type Few = (Word, Word, Word, Word, Word, Word, MultiValue);
type Many = (Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, MultiValue);

/// A reply's kind for `redis.lua`, or one of its values.
type Piece = Either<Either<bool, i64>, Either<String, BString>>;

/// What `redis.call` reaches while a script runs.
#[derive(Debug, Default)]
pub(super) struct Server {
    keyspace: Keyspace,
    keys: Vec<String>,
    /// Which of them commands are executed on.
    key: usize,
}

impl Server {
    /// Begins a script on these keys.
    pub(super) fn enter(&mut self, keyspace: Keyspace, keys: &[&str], now_us: u64) {
        self.keyspace = keyspace;
        self.keyspace.begin(now_us);
        self.keys.resize_with(keys.len(), String::new);
        for (known, key) in self.keys.iter_mut().zip(keys) {
            known.clear();
            known.push_str(key);
        }
        self.key = 0;
    }

    /// The keyspace as the script left it.
    pub(super) fn leave(&mut self) -> Keyspace {
        mem::take(&mut self.keyspace)
    }

    /// Executes a command.
    fn command(&mut self, place: usize, words: &[BString]) -> Reply {
        self.keyspace.execute(COMMANDS[place].as_bytes(), &self.keys[self.key], words)
    }
}

/// The environment of every script, with these tables in it; and the function that runs a script in it.
pub(super) fn guarded(
    lua: &Lua,
    server: &Rc<RefCell<Server>>,
    tables: [(&str, &Table); 2],
) -> mlua::Result<(Table, Function)> {
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
    let places = lua.create_table_from(COMMANDS.into_iter().enumerate().map(|(place, name)| (name, place)))?;
    let given = (
        few(lua, server)?,
        many(lua, server)?,
        choose(lua, server)?,
        places,
        names.raw_get::<Value>("KEYS")?,
        &globals,
    );
    let (redis, run): (Table, Function) = lua.load(REDIS).set_name("=redis").call(given)?;
    names.raw_set("redis", redis)?;
    names.raw_set("struct", lua.load(STRUCT).set_name("=struct").call::<Table>(&globals)?)?;
    let (setmetatable, error): (Value, Value) = (globals.raw_get("setmetatable")?, globals.raw_get("error")?);
    Ok((lua.load(GUARD).call((names, setmetatable, error))?, run))
}

/// The function that executes a command on the key: whether it raises errors, the command's place, and its other words, of
/// which there are mostly no more than six.
fn few(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Function> {
    let (server, mut words) = (server.clone(), Vec::new());
    lua.create_function_mut(move |_, (raises, place, given): (bool, usize, Few)| {
        let (a, b, c, d, e, f, rest) = given;
        take([a, b, c, d, e, f], rest, &mut words)?;
        pieces(server.borrow_mut().command(place, &words), raises)
    })
}

/// The function that says which of the keys, counted from one, the next commands are executed on.
fn choose(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Function> {
    let server = server.clone();
    lua.create_function_mut(move |_, place: usize| {
        server.borrow_mut().key = place - 1;
        Ok(())
    })
}

/// The same as [`few`], with mostly no more than twelve.
fn many(lua: &Lua, server: &Rc<RefCell<Server>>) -> mlua::Result<Function> {
    let (server, mut words) = (server.clone(), Vec::new());
    lua.create_function_mut(move |_, (raises, place, given): (bool, usize, Many)| {
        let (a, b, c, d, e, f, g, h, i, j, k, l, rest) = given;
        take([a, b, c, d, e, f, g, h, i, j, k, l], rest, &mut words)?;
        pieces(server.borrow_mut().command(place, &words), raises)
    })
}

/// The words of a command, which are strings up to its last.
fn take<const FIRST: usize>(first: [Word; FIRST], rest: MultiValue, words: &mut Vec<BString>) -> mlua::Result<()> {
    words.clear();
    let last = first.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    words.extend(first.into_iter().flatten());
    if words.len() < last || last < FIRST && !rest.is_empty() {
        return Err(Error::RuntimeError("ERR a command was passed nil".into()));
    }
    for word in rest {
        let Value::String(word) = word else {
            return Err(Error::RuntimeError(format!("ERR a command was passed {word:?}")));
        };
        words.push(word.as_bytes().to_vec().into());
    }
    Ok(())
}

/// A reply as `redis.lua` takes it: its kind and its values, false for nil.
fn pieces(reply: Reply, raises: bool) -> mlua::Result<Variadic<Piece>> {
    let (kind, text) =
        (|kind: i64| Either::Left(Either::Right(kind)), |text: String| Either::Right(Either::Left(text)));
    Ok(match reply {
        Reply::Integer(number) => [kind(1), Either::Left(Either::Right(number))].into_iter().collect(),
        Reply::Error(error) if raises => return Err(Error::RuntimeError(error)),
        Reply::Error(error) => [kind(2), text(error)].into_iter().collect(),
        Reply::Strings(strings) => {
            let piece = |string: Option<&[u8]>| match string.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
                None => Either::Left(Either::Left(false)),
                // Text has a shorter way into the interpreter than other bytes.
                Some((Ok(string), _)) => text(string.to_owned()),
                Some((Err(_), bytes)) => Either::Right(Either::Right(bytes.into())),
            };
            std::iter::once(kind(0)).chain(strings.iter().map(|string| piece(string.as_deref()))).collect()
        }
    })
}

/// Puts bytes into a table. Text has a shorter way into the interpreter than other bytes.
pub(super) fn set(table: &Table, place: usize, bytes: &[u8]) -> mlua::Result<()> {
    match std::str::from_utf8(bytes) {
        Ok(text) => table.raw_seti(place, text),
        Err(_) => table.raw_seti(place, LuaString::wrap(bytes)),
    }
}
