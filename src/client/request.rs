//! The bytes of requests, for all clients.

use std::io::Write;

/// Appends one command to `out` as RESP: an array of bulk strings, with the command's name first. For applications
/// with a transport of their own; [`Reply::parse`](super::Reply::parse) parses the answers.
///
/// ```
/// let mut out = Vec::new();
/// rationd::client::write_request(&mut out, &[b"RATION.CHECK", b"api", b"user:42"]);
/// assert_eq!(out, b"*3\r\n$12\r\nRATION.CHECK\r\n$3\r\napi\r\n$7\r\nuser:42\r\n");
/// ```
pub fn write_request(out: &mut Vec<u8>, words: &[&[u8]]) {
    header(out, '*', words.len());
    for word in words {
        header(out, '$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, kind: char, len: usize) {
    write!(out, "{kind}{len}\r\n").expect("writing to memory cannot fail");
}

/// Asks for a decision, and charges it.
pub(super) fn check(policy: &str, key: &[u8], cost: u64) -> impl FnOnce(&mut Vec<u8>) {
    move |out| {
        let cost = cost.to_string();
        write_request(out, &[b"RATION.CHECK", policy.as_bytes(), key, b"COST", cost.as_bytes()]);
    }
}

/// Asks for a decision, and charges nothing.
pub(super) fn peek(policy: &str, key: &[u8], cost: u64) -> impl FnOnce(&mut Vec<u8>) {
    move |out| {
        let cost = cost.to_string();
        write_request(out, &[b"RATION.CHECK", policy.as_bytes(), key, b"COST", cost.as_bytes(), b"PEEK"]);
    }
}

/// Gives a cost back.
pub(super) fn refund(policy: &str, key: &[u8], cost: u64) -> impl FnOnce(&mut Vec<u8>) {
    counted(b"RATION.REFUND", policy, key, cost)
}

/// Resets a key.
pub(super) fn reset(policy: &str, key: &[u8]) -> impl FnOnce(&mut Vec<u8>) {
    move |out| write_request(out, &[b"RATION.RESET", policy.as_bytes(), key])
}

/// Releases a slot.
pub(super) fn release(policy: &str, key: &[u8], slot: &str) -> impl FnOnce(&mut Vec<u8>) {
    move |out| write_request(out, &[b"RATION.RELEASE", policy.as_bytes(), key, slot.as_bytes()])
}

/// Asks for a lease of tokens.
pub(super) fn lease(policy: &str, key: &[u8], want: u64) -> impl FnOnce(&mut Vec<u8>) {
    counted(b"RATION.LEASE", policy, key, want)
}

/// Returns tokens of a lease.
pub(super) fn hand_back(policy: &str, key: &[u8], tokens: u64) -> impl FnOnce(&mut Vec<u8>) {
    counted(b"RATION.RETURN", policy, key, tokens)
}

fn counted(name: &'static [u8], policy: &str, key: &[u8], count: u64) -> impl FnOnce(&mut Vec<u8>) {
    move |out| write_request(out, &[name, policy.as_bytes(), key, count.to_string().as_bytes()])
}
