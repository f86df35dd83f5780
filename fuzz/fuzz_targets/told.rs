//! See `src/told.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rationd_fuzz::told::run(input));
