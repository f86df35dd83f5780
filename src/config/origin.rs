//! Defaults that depend on where the daemon runs: its socket and its name.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The Unix socket where nothing else is said: `/run/rationd/rationd.sock` for root, else below
/// `$XDG_RUNTIME_DIR`, else below `/tmp/rationd-UID`.
#[must_use]
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = match (own_uid(), runtime) {
        (0, _) => PathBuf::from("/run/rationd"),
        (_, Some(runtime)) => runtime.join("rationd"),
        (uid, None) => PathBuf::from(format!("/tmp/rationd-{uid}")),
    };
    directory.join("rationd.sock")
}

/// The host's name and a suffix that the caller drew at random.
pub(crate) fn default_node_name(suffix: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(64).collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}-{:08x}", suffix)
}

/// The user this process runs as: the owner of `/proc/self`. Without `/proc` nobody's.
fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid())
}
