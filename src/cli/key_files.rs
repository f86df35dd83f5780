//! Checks that private keys are private: files that other users can read keep no secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::Config;

/// The permissions of users other than the owner and the group.
const OTHERS: u32 = 0o007;

/// Warnings about the files of keys and passwords in a configuration.
pub(crate) fn exposed(config: &Config) -> Vec<String> {
    let fleet = config.fleet.as_ref().map(|fleet| ("fleet.key", fleet.key.as_path()));
    let store = config.store.key.as_deref().map(|path| ("store.key", path));
    let tcp = config.listen.tcp_key.as_deref().map(|path| ("listen.tcp_key", path));
    let users = config.listen.tcp_users.as_deref().map(|path| ("listen.tcp_users", path));
    let password = config.store.password_file.as_deref().map(|path| ("store.password_file", path));
    let digests = config.store.digest_secret_file.as_deref().map(|path| ("store.digest_secret_file", path));
    [fleet, store, tcp, users, password, digests]
        .into_iter()
        .flatten()
        .filter_map(|(key, path)| problem(key, path))
        .collect()
}

/// The warning about one file. Whoever uses the file reports if it cannot be read.
fn problem(key: &str, path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    let next = format!("chmod o= {}", path.display());
    (mode & OTHERS != 0).then(|| format!("{key} {} is open to everybody (mode {mode:04o}): {next}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_told_of() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (mode, is_private) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(problem("fleet.key", file.path()).is_none(), is_private, "{mode:o}");
        }
        let found = problem("fleet.key", file.path()).expect("it is open");
        assert!(found.starts_with("fleet.key ") && found.contains("(mode 0602): chmod o= "), "{found}");
        assert_eq!(problem("fleet.key", Path::new("/nowhere")), None);
    }
}
