//! Nodes of an earlier build and of this one in one fleet: the suite of `support/membership_suite.rs`, with
//! every second node of the other kind.

use crate::support;

use std::cell::Cell;

use bytes::Bytes;
use support::earlier::Earlier;
use support::in_memory::Memory;
use support::membership_suite::{self, Node, Start, World};

/// Nodes of two builds, in turn.
struct Mixed {
    memory: Memory,
    earlier: Cell<bool>,
}

impl World for Mixed {
    fn start(&self, start: Start<'_>) -> Box<dyn Node> {
        if self.earlier.replace(!self.earlier.get()) {
            Box::new(Earlier::start(&self.memory, start))
        } else {
            self.memory.start(start)
        }
    }

    fn gossip(&self, to: &dyn Node, messages: &[Bytes]) {
        self.memory.gossip(to, messages);
    }
}

#[test]
fn membership_behaves_where_every_second_node_is_earlier() {
    membership_suite::run(&Mixed { memory: Memory::default(), earlier: Cell::new(false) });
}

#[test]
fn membership_behaves_where_every_other_second_node_is_earlier() {
    membership_suite::run(&Mixed { memory: Memory::default(), earlier: Cell::new(true) });
}
