//! The command line: `rationd COMMAND`, one file a command.
//!
//! stdout is data, stderr is messages. A command that asks a daemon does so over its socket, with the
//! same commands that any Redis client may send.

mod args;
mod ask;
mod bench;
mod cert;
mod check;
mod config;
mod exit;
mod globals;
mod import;
mod key;
mod key_files;
mod keys;
mod log;
mod memory;
mod open_files;
mod output;
mod peers;
mod policies;
mod reload;
mod resolve;
mod run;
mod serve;
mod service_manager;

pub use import::import_envoy;
pub use run::run;
