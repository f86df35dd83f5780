//! The world: everything around the product, and the loop that executes events in the order of their times.
//!
//! `state.rs` lists the parts of the world, and each part has a file of its own. What an event does to the world is in
//! `happens/`, in the file of the part that it happens to.
//!
//! | file | what |
//! |---|---|
//! | `run.rs`, `happens/` | the loop, and what happens |
//! | `state.rs`, `rules.rs` | all parts together; the limits that a plan names |
//! | `event.rs` | what is going to happen |
//! | `demand.rs`, `keys.rs` | who asks, and of what |
//! | `node.rs`, `clock.rs`, `client.rs` | a daemon, its clock, its way to the store |
//! | `message.rs`, `network.rs`, `stream.rs` | letters; how long they take; connections that keep order |
//! | `cluster.rs`, `excerpts.rs`, `joined.rs` | servers, what a script did to a key, and which calls could be one |
//! | `asks.rs` | what nodes ask each other for |
//! | `gossip.rs`, `build.rs` | what nodes hear of each other, also of another version |
//! | `holds.rs`, `several.rs`, `permits.rs` | who charges an estimate, asks for several keys, takes a slot of a concurrent limit |
//! | `prober.rs` | the last questions, one client at a time |
//! | `watch.rs`, `crowd.rs` | who looks, and is told; whose tables are full |

mod asks;
mod build;
mod client;
mod clock;
mod cluster;
mod crowd;
mod demand;
mod event;
mod excerpts;
mod gossip;
mod happens;
mod holds;
mod joined;
mod keys;
mod message;
mod network;
mod node;
mod permits;
mod prober;
mod rules;
mod run;
mod several;
mod state;
mod stream;
mod watch;

pub(crate) use self::cluster::start_of;
pub use self::rules::setting;
pub use self::state::World;
pub use self::watch::Watch;
