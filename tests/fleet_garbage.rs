//! A member whose digests are garbage, each as long as a frame may be, costs next to no memory.
//! Alone in its process, as it measures the process.

use crate::support;

use rationd::fleet::MAX_FRAME;
use rationd::wire::digest;
use support::membership_suite::Start;
use support::memory::peak;
use support::peers::{Authority, FLEET, Stranger};
use support::random::below;

/// Growth that is allowed, in bytes.
const ALLOWED: u64 = 4 << 20;

/// Frames, sent so many at a time.
const FRAMES: usize = 400;
const AT_ONCE: usize = 8;

/// Noise, or a head that claims up to four million entries and noise behind it.
fn garbage(number: usize, random: &mut u64) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..MAX_FRAME).map(|_| below(random, 256) as u8).collect();
    frame[0] = (number % 4) as u8;
    if number.is_multiple_of(2) {
        // The latest window, then a length of eight bytes.
        frame[1] = 0;
        frame[2] = 253;
        frame[3..11].copy_from_slice(&(1_u64 << (10 + 2 * number)).to_le_bytes());
    }
    frame
}

#[test]
fn digests_of_garbage_cost_little_memory() {
    let fleet = Authority::new(FLEET);
    let mut a = fleet.start(Start::new("a", &[]));
    let (files, address) = (fleet.node("mallory"), a.fleet.address());
    let mut random = 1;
    let frames: Vec<_> = (0..AT_ONCE).map(|number| garbage(number, &mut random)).collect();
    let connecting = async {
        let mallory = Stranger::connect(&files, "rationd/1/test", address).await.expect("it has a certificate");
        mallory.hello("mallory").await;
        mallory
    };
    let runtime = support::peers::runtime();
    let mallory = runtime.block_on(connecting);
    let refuse = |a: &mut support::peers::Peer| {
        for frame in &frames {
            runtime.block_on(mallory.send(&[&[2], frame]));
        }
        for _ in &frames {
            let frame = a.receive().frame;
            assert_eq!(frame.len(), MAX_FRAME);
            assert!(digest::decode(&frame).is_err(), "{:?}", &frame[..12]);
        }
    };
    // What a connection needs in any case.
    refuse(&mut a);
    let before = peak();
    (0..FRAMES / AT_ONCE).for_each(|_| refuse(&mut a));
    let grown = peak() - before;
    println!("{FRAMES} frames of {MAX_FRAME} bytes: grown by {} KiB", grown >> 10);
    assert!(grown < ALLOWED, "grown by {} KiB", grown >> 10);
}
