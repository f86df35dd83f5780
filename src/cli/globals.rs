//! Flags that every command has.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Globals {
    /// Configuration file [default: /etc/rationd/rationd.toml, if it exists]
    #[arg(short, long, global = true, value_name = "FILE", env = "RATIOND_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The daemon's socket [default: `listen.socket` of the configuration]
    #[arg(short, long, global = true, value_name = "PATH", env = "RATIOND_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// How to print data
    #[arg(short, long, global = true, value_enum, default_value = "text", env = "RATIOND_OUTPUT")]
    pub(crate) output: Output,
    /// Say more; twice: still more [env: RATIOND_LOG=debug]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say less; twice: still less [env: RATIOND_LOG=warn]
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "verbose")]
    pub(crate) quiet: u8,
    /// Whether to colour what is printed
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN", env = "RATIOND_COLOR")]
    pub(crate) color: Color,
}

/// `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}
