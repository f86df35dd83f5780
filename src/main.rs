//! The rationd binary.
fn main() {}
