//! Digests of usage, as nodes tell them.
//!
//! Holds: what was read is written and read as the same, in one frame within bounds; and no part of a frame is a frame.

use rationd::wire::digest::{BadDigest, LONGEST, MOST, VERSION, decode, encode};

/// What they are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x01\x00\x00",
    b"\x02\x00\x00\x00",
    b"\x03\x00\x00\x00",
    b"\xfb\xff\xff",
    b"\xfc\xff\xff\xff\xff",
    b"\xfd\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xfd\x40\xc2\xa7\x28\x17\x65\x06\x00",
    b"\x01",
    b"\xfe",
];

/// See the module.
pub fn run(input: &[u8]) {
    let usage = match decode(input) {
        Ok(usage) => usage,
        Err(problem) => {
            assert!(!problem.to_string().is_empty());
            assert_eq!(problem == BadDigest::Empty, input.is_empty());
            return;
        }
    };
    assert!(usage.len() <= MOST && input.len() <= LONGEST);
    let frames = encode(&usage);
    assert_eq!(frames.len(), 1);
    assert!(frames[0].len() <= LONGEST);
    assert_eq!(decode(&frames[0]).as_ref(), Ok(&usage));
    if input[0] <= VERSION {
        for end in (0..input.len()).rev().take(300) {
            assert!(decode(&input[..end]).is_err(), "{end} bytes of {} are a digest", input.len());
        }
        assert!(decode(&[input, b"\0"].concat()).is_err(), "one byte more is a digest, too");
    }
}
