//! The fleet: one QUIC endpoint with mutual TLS, membership, and frames between nodes.
//!
//! It decides who may take part (certificates of the fleet's CA, with one name each) and who is alive (by gossip,
//! about nodes that were heard directly). Sending never waits. Everything from a peer is bounded before it is read.
//! Does not know what frames of usage mean, nor what the daemon does with the list of live nodes: `serve` connects
//! both.
//!
//! ```text
//! Fleet ── Membership ── chitchat ── transport ── validate ── message, heard, hints
//!   │                                    │
//!   └───────────── send_queue ───────────┘   one queue per address, one stream per frame
//!                    │
//!                  ConnectionPool ── table            which connection leads to whom
//!                    │
//!                  Link ── quinn             hello, then frames
//! ```
//!
//! Asks go another way, as somebody waits for them: `ask_queue` has a queue for each peer, and `ask_stream` one stream. While
//! somebody looks at the whole fleet, each node is asked what it does by a stream for each `look`.

mod ask_queue;
mod ask_stream;
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
mod look;
mod members;
mod membership;
mod message;
mod names;
mod peer;
mod quic;
mod rhythm;
mod seeds;
mod send_queue;
mod stats;
mod streams;
mod table;
mod timers;
mod tls;
mod transport;
mod validate;

pub use ask_stream::{AskTaker, Reply};
pub use connection_pool::Incoming;
pub use error::FleetError;
pub use frame::{MAX_FRAME, hello_again};
pub use handle::{Fleet, FleetOptions};
pub use identity::IdentityFiles;
pub use look::{LONGEST_ANSWER, LookTaker, Show, Unseen};
pub use members::{Member, MemberState, Members, Owning};
pub use membership::{Membership, MembershipOptions};
pub use message::gossip_again;
pub use names::{any_node_name, fleet_name, is_label, node_name};
pub use peer::{Carrier, GossipMessage, PeerId};
pub use stats::FleetStats;
