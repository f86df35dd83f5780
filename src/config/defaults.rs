//! Defaults that depend on where the daemon runs: the path of its socket, and its name.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The default path of the Unix socket: `/run/rationd/rationd.sock` for root, otherwise below `$XDG_RUNTIME_DIR`, or
/// below `/tmp/rationd-UID` if that is not set.
#[must_use]
pub(super) fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = match (own_uid(), runtime) {
        (0, _) => PathBuf::from("/run/rationd"),
        (_, Some(runtime)) => runtime.join("rationd"),
        (uid, None) => PathBuf::from(format!("/tmp/rationd-{uid}")),
    };
    directory.join("rationd.sock")
}

/// The host's name with a suffix, which the caller has drawn at random.
pub(crate) fn default_node_name(suffix: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(64).collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("{host}-{:08x}", suffix)
}

/// The user of this process, which owns `/proc/self`; nobody's uid where there is no `/proc`.
fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid())
}
