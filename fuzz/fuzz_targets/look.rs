//! See `src/look.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rationd_fuzz::look::run(input));
