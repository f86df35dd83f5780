//! What untrusted bytes go through, one function each: `fn(&[u8])`, which panics where something does not hold.
//!
//! cargo-fuzz calls them through `fuzz_targets/`, and `main.rs` over the corpora, on stable. Each asserts more than
//! that nothing panics; its module says what.

pub mod daemon;
pub mod digest;
pub mod envoy;
pub mod fleet;
pub mod frames;
pub mod hello;
pub mod http;
pub mod import;
pub mod limit;
pub mod look;
pub mod reply;
pub mod resp;
pub mod shard;
pub mod store;

/// One of the functions.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its corpus, too.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
    /// Longest input, in bytes.
    pub longest: usize,
    /// What may stand in an input: a mutation puts one somewhere.
    pub words: &'static [&'static [u8]],
}

/// All of them.
pub const TARGETS: [Target; 13] = [
    Target { name: "digest", run: digest::run, longest: 4 << 10, words: digest::WORDS },
    Target { name: "envoy", run: envoy::run, longest: 8 << 10, words: envoy::WORDS },
    Target { name: "fleet", run: fleet::run, longest: 8 << 10, words: fleet::WORDS },
    Target { name: "frames", run: frames::run, longest: 16 << 10, words: frames::WORDS },
    Target { name: "hello", run: hello::run, longest: 512, words: hello::WORDS },
    Target { name: "http", run: http::run, longest: 16 << 10, words: http::WORDS },
    Target { name: "import", run: import::run, longest: 8 << 10, words: import::WORDS },
    Target { name: "limit", run: limit::run, longest: 256, words: limit::WORDS },
    Target { name: "look", run: look::run, longest: 80 << 10, words: look::WORDS },
    Target { name: "reply", run: reply::run, longest: 4 << 10, words: reply::WORDS },
    Target { name: "resp", run: resp::run, longest: 8 << 10, words: resp::WORDS },
    Target { name: "shard", run: shard::run, longest: 4 << 10, words: shard::WORDS },
    Target { name: "store", run: store::run, longest: 4 << 10, words: store::WORDS },
];
