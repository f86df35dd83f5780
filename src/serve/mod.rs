//! The running daemon.
