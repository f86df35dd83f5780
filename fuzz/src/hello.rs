//! The first frame between two nodes, and gossip messages as they are read before chitchat sees them.
//!
//! Holds: what was understood is written in a form that is understood as the same, and is not longer than what came,
//! but for facts, which come packed.

use rationd::fleet::{MAX_FRAME, PeerId, gossip_again, hello_again};

/// What they are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x00\x01",
    b"\x53\xb0\x00\x00",
    b"\x53\xb0\x00\x01",
    b"\x53\xb0\x00\x02",
    b"\x53\xb0\x00\x03",
    b"\x07mallory",
    b"\x07\x00mallory",
    b"\x01\x00\x00\x00\x00\x00\x00\x00",
    b"\x0e127.0.0.1:7946",
    b"\x04\x7f\x00\x00\x01\x09\x00",
    b"\x05\x00state",
    b"\x07\x00version",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x02",
    b"\x01",
];

/// See the module.
pub fn run(input: &[u8]) {
    if let Some(again) = hello_again(input) {
        assert_eq!(hello_again(&again).as_ref(), Some(&again));
        assert!(again.len() <= input.len().max(512));
    }
    let from = PeerId { name: "mallory".into(), incarnation: 1 };
    if let Some(again) = gossip_again(input, &from) {
        assert_eq!(gossip_again(&again, &from).as_ref(), Some(&again));
        assert!(again.len() <= MAX_FRAME, "{} bytes", again.len());
    }
}
