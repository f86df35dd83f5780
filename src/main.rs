//! The rationd binary.
#![forbid(unsafe_code)]

fn main() {}
