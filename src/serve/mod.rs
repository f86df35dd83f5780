//! The running daemon: everything around the core that touches a socket, a clock or a thread.
//!
//! The path of a check: `worker` accepts the connection, `connection` reads and writes, `session` runs commands, and
//! `node` asks the key's shard. Calls to a store go through `turnstile` and `store_dispatch`, and their answers come
//! back through `mailbox` and `reply_queue`. Asks of peers go through `lending`, and those that peers make come through
//! `peer_asks`. `fleet_top` shows what the whole fleet does, while somebody looks. `server_state` holds what all of
//! these share, and knows none of them. `daemon` builds and ends everything.

pub mod ad_hoc_rules;
pub mod admin;
pub mod admission;
mod arrivals;
pub mod ask;
pub mod budget;
pub mod caller;
pub mod check_request;
mod command_line;
pub mod connection;
pub mod connection_permits;
pub mod crowd;
pub mod daemon;
pub mod daemon_status;
mod deadlines;
pub mod denial_log;
pub mod denied;
pub mod envoy;
pub mod exposition;
pub mod figures;
pub mod fleet_look;
pub mod fleet_top;
pub mod gossip;
pub mod handed;
pub mod handshake;
mod held;
pub mod history;
pub mod hot_keys;
pub mod http;
mod key_text;
pub mod lending;
pub mod listing;
pub mod look;
pub mod mailbox;
pub mod metrics;
pub mod node;
mod observer;
mod owned;
pub mod parameters;
pub mod peer_asks;
pub mod peer_outcome;
pub mod peer_reply;
mod pictures;
pub mod policy_diff;
pub mod process;
pub mod recording;
pub mod reload;
pub mod reply_queue;
mod requests;
pub mod rights;
pub mod script_cache;
mod seating;
pub mod server_state;
pub mod session;
mod shared;
pub mod sketch;
pub mod socket;
pub mod spool;
pub mod stats;
pub mod status_page;
pub mod store_dispatch;
pub mod stream;
pub mod tcp;
pub mod thread;
pub mod thread_stats;
pub mod timer_task;
pub mod top;
pub mod transaction;
pub mod turnstile;
pub mod vital;
mod wake_list;
pub mod worker;

pub use admission::Limits;
pub use daemon::{Daemon, StartError, StartOptions};
pub use server_state::{Reload, ReloadMode, ServerState};
pub use stats::Stats;
pub use store_dispatch::{Backend, RemoteStore};
