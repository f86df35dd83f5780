//! The configuration: a tree of typed values, the layers it is read from, and what is wrong with them.
//!
//! Layers, later ones win: built-in defaults, one TOML file, `policies.d/*.toml` beside it (policies only),
//! `RATIOND_SECTION__KEY` variables, flags. Everything is checked before anything is used, and all that is
//! wrong is reported at once, with file, line, column and a caret. Knows nothing of the running daemon.
//! Called by the command line and by a reload.

mod descriptors;
mod document;
mod layer;
mod layers;
mod origin;
mod outside;
mod problem;
mod reference;
mod schema;
mod show;
mod tree;
mod value;

pub use layers::{DEFAULT_FILE, Loaded, Override, Sources, load};
pub use origin::default_socket;
pub use problem::{ConfigErrors, Place, Problem};
pub(crate) use problem::{did_you_mean, nearest};
pub use reference::{Described, reference};
pub use schema::SAMPLE;
pub use show::Entry;
pub use tree::{Config, Confirm, Door, Fleet, Listen, Log, LogFormat, Node, Store};
