//! Programs that `tests/run packages` has put beside this build's other files.

use std::path::{Path, PathBuf};

/// Where a part of them is.
///
/// # Panics
/// When it is missing.
#[must_use]
pub fn installed(part: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target directory");
    let path = target.join("clients").join(part);
    assert!(path.exists(), "{} is missing: run `tests/run packages` first", path.display());
    path
}
