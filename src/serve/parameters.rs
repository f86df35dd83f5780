//! The parameters of an HTTP request: a form (in the query or the body) or a JSON object, with each name at most
//! once.
//!
//! Names and values are bytes, percent-encoded where needed. Knows the names, but not what they mean.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// All names; each endpoint knows some of them.
const NAMES: [&str; 6] = ["policy", "key", "cost", "style", "deny", "id"];

/// The parameters of one request.
#[derive(Debug, Default)]
pub struct Parameters {
    values: [Option<Vec<u8>>; NAMES.len()],
    /// The first unknown name.
    unknown: Option<String>,
}

impl Parameters {
    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values[NAMES.iter().position(|known| *known == name)?].as_deref()
    }

    /// Takes the value of a name out.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.values[NAMES.iter().position(|known| *known == name)?].take()
    }

    /// The name of a parameter that is present but not `known`.
    #[must_use]
    pub fn beyond(&self, known: &[&str]) -> Option<&str> {
        let there = NAMES.iter().zip(&self.values).filter(|(_, value)| value.is_some());
        let other = there.map(|(name, _)| *name).find(|name| !known.contains(name));
        self.unknown.as_deref().or(other)
    }

    /// Adds the parameters of a form.
    ///
    /// # Errors
    /// In words: a parameter that is given twice.
    pub fn read_form(&mut self, text: &[u8]) -> Result<(), String> {
        for pair in text.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
            let at = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
            let (name, value) = (&pair[..at], pair.get(at + 1..).unwrap_or_default());
            self.insert(&decoded(name), decoded(value).into_owned())?;
        }
        Ok(())
    }

    /// Adds the parameters of a JSON object.
    ///
    /// # Errors
    /// In words: it is no object, a value is neither text nor a number, or a name is given twice.
    pub fn read_json(&mut self, text: &[u8]) -> Result<(), String> {
        let Members(members) = serde_json::from_slice(text).map_err(|error| format!("the body: {error}"))?;
        for (name, value) in members {
            let value = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                other => return Err(format!("'{name}' is {other}: wanted a string or a number")),
            };
            self.insert(name.as_bytes(), value.into_bytes())?;
        }
        Ok(())
    }

    fn insert(&mut self, name: &[u8], value: Vec<u8>) -> Result<(), String> {
        let Some(index) = NAMES.iter().position(|known| known.as_bytes() == name) else {
            self.unknown.get_or_insert_with(|| String::from_utf8_lossy(name).into_owned());
            return Ok(());
        };
        match self.values[index].replace(value) {
            None => Ok(()),
            Some(_) => Err(format!("the parameter '{}' stands twice", NAMES[index])),
        }
    }
}

/// The members of a JSON object in order. A map would silently drop one of two members with the same name.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(member) = map.next_entry()? {
            self.0.push(member);
        }
        Ok(self)
    }
}

fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    let (mut has_spaces, mut has_codes) = (false, false);
    for byte in text {
        has_spaces |= *byte == b'+';
        has_codes |= *byte == b'%';
    }
    if !has_spaces {
        return if has_codes { percent_decode(text).into() } else { Cow::Borrowed(text) };
    }
    let spaced: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Result<Parameters, String> {
        let mut parameters = Parameters::default();
        parameters.read_form(text.as_bytes()).map(|()| parameters)
    }

    #[test]
    fn names_and_values_are_decoded_and_empty_pairs_skipped() {
        let read = form("&p%6Flicy=a+b%2B&&key=%ff=%00&cost").unwrap();
        assert_eq!(read.get("policy"), Some(&b"a b+"[..]));
        assert_eq!(read.get("key"), Some(&b"\xff=\0"[..]));
        assert_eq!((read.get("cost"), read.get("style")), (Some(&b""[..]), None));
        assert_eq!((read.beyond(&["policy", "key"]), read.beyond(&["policy", "key", "cost"])), (Some("cost"), None));
    }

    #[test]
    fn one_that_stands_twice_is_told_wherever_it_stands() {
        assert_eq!(form("key=1&k%65y=2").unwrap_err(), "the parameter 'key' stands twice");
        let mut both = form("key=1&other=2&more=3").unwrap();
        assert_eq!(both.beyond(&NAMES), Some("other"));
        assert_eq!(both.read_json(br#"{"cost":7,"key":"j"}"#).unwrap_err(), "the parameter 'key' stands twice");
        assert_eq!(both.get("cost"), Some(&b"7"[..]));
        assert_eq!(both.read_json(br#"{"style":[]}"#).unwrap_err(), "'style' is []: wanted a string or a number");
        for doubled in [&br#"{"key":"a","key":"b"}"#[..], br#"{"key":"a","other":1,"k\u0065y":"a"}"#] {
            let error = Parameters::default().read_json(doubled).unwrap_err();
            assert_eq!(error, "the parameter 'key' stands twice");
        }
    }
}
