//! The fleet: one QUIC endpoint with mutual TLS, who is in the fleet, and frames between its nodes.
//!
//! Decides who may speak (certificates of the fleet's CA, one name each), who is alive (gossip, of those that
//! were heard themselves), and that
//! nobody who sends ever waits. Does not know what frames of usage mean, nor what the daemon does with the
//! live set: `serve` wires both. Everything that comes from a peer is bounded before it is read.
//!
//! ```text
//! Fleet ── Membership ── chitchat ── transport ── inspect ── message, heard, hints
//!   │                                    │
//!   └───────────── lane ─────────────────┘   one queue per address, one stream per frame
//!                    │
//!                  ConnectionPool ── table            which connection leads to whom
//!                    │
//!                  Link ── quinn             hello, then frames
//! ```

mod congestion;
mod connection_pool;
mod error;
mod frame;
mod handle;
mod handshakes;
mod heard;
mod hints;
mod identity;
mod link;
mod members;
mod membership;
mod message;
mod names;
mod peer;
mod quic;
mod seeds;
mod send_queue;
mod stats;
mod table;
mod tls;
mod transport;
mod validate;

pub use connection_pool::Incoming;
pub use error::FleetError;
pub use frame::{MAX_FRAME, hello_again};
pub use handle::{Fleet, FleetOptions};
pub use identity::IdentityFiles;
pub use members::{Member, MemberState, Members};
pub use membership::{Membership, MembershipOptions};
pub use message::gossip_again;
pub use names::{any_node_name, fleet_name, is_label, node_name};
pub use peer::{Carrier, Gossip, PeerId};
pub use stats::FleetStats;
