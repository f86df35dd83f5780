//! The configuration: a tree of typed values, the layers that it is read from, and errors with file and line.
//!
//! Later layers override earlier ones: built-in defaults, one TOML file, `policies.d/*.toml` beside it (policies
//! only), variables like `RATIOND_SECTION__KEY`, flags. Everything is checked before anything is used, and all errors
//! are reported at once, with file, line, column and a caret. Knows nothing of the running daemon. Called by the
//! command line and by a reload.

mod defaults;
mod descriptors;
mod document;
mod json_schema;
mod layer;
mod layers;
mod overrides;
mod problem;
mod reference;
mod schema;
mod show;
mod tree;
mod value;

pub use json_schema::json_schema;
pub use layers::{DEFAULT_FILE, Loaded, Override, Sources, load};
pub use problem::{ConfigErrors, Place, Problem};
pub(crate) use problem::{did_you_mean, nearest};
pub use reference::{Described, reference};
pub use schema::SAMPLE;
pub use show::Entry;
pub use tree::{
    Config, Confirm, DenialKeys, Denials, Fleet, FleetTop, Listen, ListenAddress, Log, LogFormat, Node, Owner, Record,
    Store,
};
