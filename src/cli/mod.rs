//! The command line: `rationd COMMAND`, with one file per command.
//!
//! Data goes to stdout, messages go to stderr. Commands that need a daemon send it the same requests over its socket
//! that any Redis client may send.

mod args;
mod ask;
mod bench;
mod cert;
mod check;
mod completions;
mod config;
mod demo;
mod denials;
mod denials_file;
mod doctor;
mod exit;
mod globals;
mod import;
mod key;
mod key_files;
mod keys;
mod leases;
mod log;
mod memory;
mod open_files;
mod output;
mod own_thread;
mod peers;
mod percent;
mod plan;
mod policies;
mod record_file;
mod reload;
mod replay;
mod resolve;
mod run;
mod serve;
mod service_manager;
mod size;
mod top;
mod version;

pub use doctor::{Check, checks};
pub use import::import_envoy;
pub use run::run;
