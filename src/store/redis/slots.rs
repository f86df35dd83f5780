//! Computes which of a cluster's 16384 slots a key is in, and parses what `CLUSTER SLOTS` says of their owners.
//!
//! Source: the Redis Cluster specification (CRC16-XMODEM of the hash tag, modulo 16384). Knows nothing of
//! connections. Called by `cluster.rs`.

use redis::Value;

use super::address::Address;

/// Slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// Consecutive slots with one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

/// The slot of a key. If the key has a `{` and a `}` behind it, only the part between them is hashed.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&byte| byte == b'}').filter(|&end| end > 0).map(|end| &rest[..end])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

/// Parses a reply to `CLUSTER SLOTS`. The reply may leave a node's host out to mean the node `answering`. `None` when
/// it is no such reply, or names no slot.
pub(crate) fn parse(reply: Value, answering: &Address) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else { return None };
    let ranges: Vec<_> = rows.into_iter().filter_map(|row| parse_row(row, answering)).collect();
    (!ranges.is_empty()).then_some(ranges)
}

/// Each range of a reply of `CLUSTER SLOTS` from the node at `host`: its first and last slot, and where its owner and
/// the replicas are. For `fuzz/`, which has no connection.
#[doc(hidden)]
#[must_use]
pub fn cluster_slots(reply: Value, host: &str) -> Option<Vec<(u16, u16, Vec<String>)>> {
    let with_nodes = |range: Range| {
        let nodes = std::iter::once(range.master).chain(range.replicas);
        (range.first, range.last, nodes.map(|node| node.to_string()).collect())
    };
    Some(parse(reply, &Address::tcp(host, 6379))?.into_iter().map(with_nodes).collect())
}

fn parse_row(row: Value, answering: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let mut row = row.into_iter();
    let (Value::Int(first), Value::Int(last)) = (row.next()?, row.next()?) else { return None };
    let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
    if first > last || usize::from(last) >= SLOTS {
        return None;
    }
    let master = parse_node(row.next()?, answering)?;
    Some(Range { first, last, master, replicas: row.filter_map(|node| parse_node(node, answering)).collect() })
}

fn parse_node(node: Value, answering: &Address) -> Option<Address> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = node.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    match host {
        "?" => None,
        _ => answering.neighbour(host, u16::try_from(*port).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"x:{foo}"), 12_182);
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % 16_384);
    }

    #[test]
    fn reads_owners_and_replicas() {
        let me = Address::tcp("10.0.0.9", 7000);
        let reply = Value::Array(vec![
            Value::Array(vec![Value::Int(0), Value::Int(99), node("10.0.0.1", 7001), node("10.0.0.2", 7002)]),
            Value::Array(vec![Value::Int(100), Value::Int(16_383), node("", 7003)]),
        ]);
        let ranges = parse(reply, &me).expect("a slot map");
        assert_eq!(ranges[0].master, Address::tcp("10.0.0.1", 7001));
        assert_eq!(ranges[0].replicas, [Address::tcp("10.0.0.2", 7002)]);
        assert_eq!(ranges[1].master, Address::tcp("10.0.0.9", 7003));
    }

    #[test]
    fn nonsense_is_no_slot_map() {
        let me = Address::tcp("h", 1);
        let row =
            |first, last| Value::Array(vec![Value::Array(vec![Value::Int(first), Value::Int(last), node("h", 1)])]);
        for reply in [Value::Nil, Value::Array(vec![]), row(5, 4), row(0, 16_384), row(-1, 4)] {
            assert_eq!(parse(reply.clone(), &me), None, "{reply:?}");
        }
    }
}
