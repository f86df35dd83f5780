//! What a script did to a key's hash: the hash before and after, as far as it concerns the node that asked, and all
//! that was written beside. For the second opinion; decides nothing.

use rationd::core::call::Call;
use rationd::core::time::Timestamp;
use rationd::store::excerpt::{Excerpt, field, field_of_node};

use crate::keyspace::{Keyspace, Written};
use crate::observe::Ran;

/// A key's hash before a script runs.
pub(super) struct Before {
    mark: usize,
    there: bool,
    excerpt: Result<Option<Excerpt>, String>,
}

impl Before {
    /// Looks at the hash that `call` of `node` is about.
    pub(super) fn look(keyspace: &Keyspace, key: &str, node: &str, now: u64, call: &Call) -> Self {
        let there = keyspace.look(key, now).is_some();
        Self { mark: keyspace.mark(), there, excerpt: read(keyspace, key, node, now, call) }
    }

    /// Looks again after the script ran.
    pub(super) fn compared<'a>(self, keyspace: &Keyspace, key: &str, node: &'a str, now: u64, call: &Call) -> Ran<'a> {
        let mut ran = Ran { node, ..Ran::default() };
        for (place, excerpt) in [self.excerpt, read(keyspace, key, node, now, call)].into_iter().enumerate() {
            match excerpt {
                Ok(excerpt) => ran.hash[place] = excerpt,
                Err(seen) => ran.stray = Some(seen),
            }
        }
        for written in keyspace.written_since(self.mark) {
            match written {
                Written::Deleted => ran.deleted |= self.there,
                Written::Field(name, before) => beside(&mut ran, keyspace, key, node, call, name, before),
            }
        }
        ran
    }
}

fn read(keyspace: &Keyspace, key: &str, node: &str, now: u64, call: &Call) -> Result<Option<Excerpt>, String> {
    let Some(entry) = keyspace.look(key, now) else { return Ok(None) };
    // It is there for the whole of its last millisecond.
    let Some(last) = entry.expires_ms() else { return Err("a key that never expires".into()) };
    let expires = Timestamp((last.unsigned_abs() + 1) * 1_000);
    let excerpt = Excerpt::read(node, &call.rule.limits, expires, |name| entry.field(name));
    excerpt.map_err(|unreadable| unreadable.seen)
}

/// Takes note of a field that is none of this call's.
fn beside(
    ran: &mut Ran<'_>,
    keyspace: &Keyspace,
    key: &str,
    node: &str,
    call: &Call,
    name: &[u8],
    before: Option<&[u8]>,
) {
    let limits = call.rule.limits.iter().enumerate();
    let is_own = [b"e", b"z", b"c", b"o"].iter().any(|own| *own == name)
        || limits.into_iter().any(|(index, limit)| field(index, limit) == name)
        || field_of_node(node) == name;
    if is_own {
        return;
    }
    let is_there = keyspace.get(key).is_some_and(|entry| entry.field(name).is_some());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let asked = before.and_then(|record| text(record).split(' ').next().and_then(|cid| cid.parse().ok()));
    match asked {
        Some(cid) if !is_there && name.starts_with(b"n:") => ran.dropped.push((text(name), cid)),
        _ => ran.stray = Some(format!("{} was written", text(name))),
    }
}
