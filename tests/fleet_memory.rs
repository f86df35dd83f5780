//! What a member may send costs a bounded amount of memory: bombs and floods of frames that are too large.
//! Alone in its process, as it measures the process.

use crate::support;

use rationd::fleet::MAX_FRAME;
use support::membership_suite::{Node, Start, sees};
use support::memory::peak;
use support::peers::{Authority, FLEET, Stranger};
use support::poll::wait_until;

/// Growth that is allowed, in bytes: a bomb that goes off takes ten times as much.
const ALLOWED: u64 = 24 << 20;

/// A gossip message that says a delta of `blocks` blocks, each of 65,535 zeros in 11 bytes of zstd.
fn bomb(blocks: usize) -> Vec<u8> {
    const BLOCK: [u8; 14] = [1, 11, 0, 0x28, 0xb5, 0x2f, 0xfd, 0x60, 0xff, 0xfe, 0xfb, 0xff, 0x07, 0];
    let mut message = vec![0x53, 0xb0, 0, 2];
    message.extend(BLOCK.repeat(blocks));
    message.push(0);
    assert!(message.len() <= MAX_FRAME, "{} bytes", message.len());
    message
}

#[test]
fn bombs_and_oversized_frames_cost_little_memory() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let b = fleet.start(Start::new("b", &[a.address()]));
    sees(&a, "a b");
    let large = vec![0; 4 << 20];
    let bombs = [bomb(4_600), bomb(32), bomb(1)];
    let before = peak();
    let files = fleet.node("mallory");
    a.runtime().block_on(async {
        let mallory = Stranger::connect(&files, "rationd/1/test", a.address()).await.expect("it has a certificate");
        mallory.hello("mallory").await;
        for _ in 0..20 {
            for bomb in &bombs {
                mallory.send(&[&[1], bomb]).await;
            }
            mallory.send(&[&[2], &large]).await;
        }
    });
    wait_until("all of it has come", 20, || {
        let stats = a.fleet.stats();
        stats.malformed + stats.dropped_in == 60 && stats.oversized == 20
    });
    let grown = peak() - before;
    println!("grown by {} KiB", grown >> 10);
    assert!(grown < ALLOWED, "grown by {} MiB", grown >> 20);
    for node in [&a, &b] {
        sees(node, "a b");
    }
}
