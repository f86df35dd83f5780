//! What a process has taken of memory.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

/// The most memory that this process has had, in bytes.
pub fn peak() -> u64 {
    of_process("self", "VmHWM:")
}

/// The most memory that a process has had, in bytes.
pub fn peak_of(process: u32) -> u64 {
    of_process(&process.to_string(), "VmHWM:")
}

/// The memory that a process has now, in bytes.
pub fn resident_of(process: u32) -> u64 {
    of_process(&process.to_string(), "VmRSS:")
}

fn of_process(process: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux tells it");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("it is there");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}
