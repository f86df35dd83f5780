//! HTTP/2 frames on Envoy's door, behind a preface that is right.
//!
//! Holds: what comes back is whole frames, settings first, none longer than the other side allows; the connection ends
//! soon after its input; and the door still answers others.

use super::daemon;

/// What is sent before an input: the preface, and settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Longest frame that is allowed before anything else is said.
const MAX_FRAME: usize = 16 << 10;

/// What frames are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x00\x00\x00\x04\x01\x00\x00\x00\x00",
    b"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\xff\xff",
    b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
    b"\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00",
    b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x83",
    b"\x00\x00\x01\x01\x04\x00\x00\x00\x03\x86",
    b"\x00\x00\x00\x09\x04\x00\x00\x00\x01",
    b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x83",
    b"\x86",
    b"\x84",
    b"\x44\x3d/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    b"\x7f\xff\xff\xff\x0f",
    b"\xff\xff\xff",
    b"\x00\x03\x00\x00\x00\x00",
];

/// See the module.
pub fn run(input: &[u8]) {
    let cut = input.len() / 2;
    let told = daemon::talk(&daemon::served().door, &[PREFACE, &input[..cut], &input[cut..]]);
    let (mut rest, mut count) = (&told[..], 0);
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(9).expect("a frame has a whole head");
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        assert!(length <= MAX_FRAME, "a frame of {length} bytes");
        assert!(count > 0 || (head[3], head[4]) == (4, 0), "settings come first, not {head:?}");
        rest = after.get(length..).expect("a frame comes whole");
        count += 1;
    }
    // Each frame has one answer at most, and there are a few of the door's own.
    assert!(count <= 16 + 2 * input.len() / 9, "{count} frames to {} bytes", input.len());
}
