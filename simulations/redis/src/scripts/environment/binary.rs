//! The part of Redis' library `struct` that scripts use: `pack` and `unpack` of unsigned integers, the lowest byte
//! first (`<`, then `I` and how many bytes), and of bytes (`c` and how many).
//!
//! Another format is an error, as is a value that an integer of Redis' would change on its way.

use mlua::{Error, Lua, LuaString, MultiValue, Table, Value, Variadic};

/// What one letter of a format stands for.
enum Item {
    Integer(usize),
    Bytes(usize),
}

/// `struct`, with both functions.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.raw_set("pack", lua.create_function(pack)?)?;
    library.raw_set("unpack", lua.create_function(unpack)?)?;
    Ok(library)
}

fn failed<T>(what: &str) -> mlua::Result<T> {
    Err(Error::RuntimeError(format!("ERR {what}")))
}

/// The items of a format.
fn items(format: &[u8]) -> impl Iterator<Item = mlua::Result<Item>> + '_ {
    let mut rest = format.strip_prefix(b"<").unwrap_or_default();
    let mut is_refused = rest.is_empty();
    std::iter::from_fn(move || {
        if std::mem::take(&mut is_refused) {
            return Some(failed("simulations know formats that begin with < only"));
        }
        let [letter, width, behind @ ..] = rest else {
            return std::mem::take(&mut rest).first().map(|_| failed("invalid format"));
        };
        rest = behind;
        Some(match (letter, width) {
            (b'I', b'1'..=b'8') => Ok(Item::Integer(usize::from(width - b'0'))),
            (b'c', b'1'..=b'9') => Ok(Item::Bytes(usize::from(width - b'0'))),
            _ => failed("invalid format, or one that simulations do not know"),
        })
    })
}

fn pack(lua: &Lua, (format, values): (LuaString, Variadic<Value>)) -> mlua::Result<LuaString> {
    let (mut packed, mut values) = (Vec::with_capacity(64), values.into_iter());
    for item in items(&format.as_bytes()) {
        match (item?, values.next()) {
            (Item::Integer(width), Some(value)) => {
                let number = match value {
                    Value::Integer(number) => number as f64,
                    Value::Number(number) => number,
                    _ => return failed("bad argument to 'pack' (number expected)"),
                };
                if number.fract() != 0.0 || number < 0.0 || number >= (8.0 * width as f64).exp2() {
                    return failed(&format!("{number} does not fit into {width} bytes"));
                }
                packed.extend_from_slice(&(number as u64).to_le_bytes()[..width]);
            }
            (Item::Bytes(width), Some(Value::String(text))) if text.as_bytes().len() >= width => {
                packed.extend_from_slice(&text.as_bytes()[..width]);
            }
            _ => return failed("bad argument to 'pack'"),
        }
    }
    lua.create_string(packed)
}

/// The values, and the place behind the last.
fn unpack(lua: &Lua, (format, data, place): (LuaString, LuaString, Option<usize>)) -> mlua::Result<MultiValue> {
    let data = data.as_bytes();
    let (mut values, mut place) = (MultiValue::with_capacity(12), place.unwrap_or(1).saturating_sub(1));
    for item in items(&format.as_bytes()) {
        let item = item?;
        let (Item::Integer(width) | Item::Bytes(width)) = item;
        let Some(bytes) = data.get(place..place + width) else {
            return failed("bad argument #2 to 'unpack' (data string too short)");
        };
        place += width;
        values.push_back(match item {
            Item::Integer(_) => {
                Value::Number(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) as f64)
            }
            Item::Bytes(_) => Value::String(lua.create_string(bytes)?),
        });
    }
    values.push_back(Value::Number((place + 1) as f64));
    Ok(values)
}
