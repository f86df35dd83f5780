//! `rationd --version -v`: what this program was built from.
//!
//! The commit comes from the variable `RATIOND_COMMIT` of the build, and not from git: a crate has no git, and two builds of
//! one source are the same.

use std::fmt::Write;

/// The text, if `words` (the arguments of the process) ask for the version together with `-v`.
pub(super) fn asked(words: impl Iterator<Item = String>) -> Option<String> {
    let (mut version, mut more) = (false, false);
    for word in words {
        match word.as_str() {
            "--version" => version = true,
            "--verbose" => more = true,
            flags
                if flags.starts_with('-')
                    && !flags.starts_with("--")
                    && flags[1..].chars().all(|c| matches!(c, 'v' | 'V')) =>
            {
                version |= flags.contains('V');
                more |= flags.contains('v');
            }
            // A command, or a flag with a value: left to clap.
            _ => return None,
        }
    }
    (version && more).then(long)
}

/// Says why the commit is unknown, and how to build with it.
const UNKNOWN: &str = "unknown (the build was not told by RATIOND_COMMIT, as deploy/package/binary does)";

fn long() -> String {
    let features = [
        ("client", cfg!(feature = "client")),
        ("client-tokio", cfg!(feature = "client-tokio")),
        ("daemon", cfg!(feature = "daemon")),
        ("gossip", cfg!(feature = "gossip")),
        ("mutants", cfg!(feature = "mutants")),
    ];
    let on: Vec<_> = features.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let mut text = format!("rationd {}", env!("CARGO_PKG_VERSION"));
    let _ = write!(text, "\ncommit: {}", option_env!("RATIOND_COMMIT").unwrap_or(UNKNOWN));
    let _ = write!(text, "\nfeatures: {}", on.join(" "));
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let _ = write!(text, "\nbuild: {profile}, {}-{}", std::env::consts::ARCH, std::env::consts::OS);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_said_only_where_it_is_asked_for() {
        let says = |line: &str| asked(line.split_whitespace().map(str::to_owned)).is_some();
        for line in ["--version -v", "-v --version", "-V -v", "-vV", "--version --verbose"] {
            assert!(says(line), "{line}");
        }
        for line in ["--version", "-V", "-v", "", "serve --version -v", "--version -v --colour"] {
            assert!(!says(line), "{line}");
        }
        assert!(long().contains("\nfeatures: client client-tokio daemon gossip"), "{}", long());
    }
}
