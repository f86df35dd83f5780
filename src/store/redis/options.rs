//! How to reach the shared store: the options as the configuration gives them, parsed once.
//!
//! URLs: `redis://[user:pass@]host[:port][/db]`, `rediss://…` with TLS, `redis+unix:///path`,
//! `redis-cluster://[user:pass@]h1:p,h2:p,…` and `rediss-cluster://…`. An error says what was seen,
//! what was wanted and what to do, and never shows a password. Opens files, but no connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tls::Tls;
use super::url::{Target, parse_url, without_password};

/// Whether a grant must be confirmed by a replica before it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// Where a cluster has replicas.
    #[default]
    Auto,
    /// Wherever there is a replica, on single servers too.
    On,
    /// Nowhere.
    Off,
}

/// The shared store as the configuration describes it.
#[derive(Clone)]
pub struct RedisOptions {
    /// Where the store is; see the module's doc for the forms.
    pub url: String,
    /// Certificates (PEM) that vouch for the servers, instead of the system's.
    pub ca: Option<PathBuf>,
    /// This node's certificate (PEM), with `key`.
    pub cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// The file that holds the password, instead of the URL.
    pub password_file: Option<PathBuf>,
    /// How long a caller waits for an answer. Calls that could not be answered within it are not sent.
    pub timeout: Duration,
    /// Prefix of every key.
    pub prefix: String,
    /// This node's name: unique in the fleet, the same after a restart.
    pub node: String,
    /// Whether grants must be confirmed by a replica.
    pub confirm: Confirm,
}

/// What is wrong with the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// The URL cannot be used. The password in it is masked.
    Url {
        /// The URL.
        seen: String,
        /// What is wrong, what was wanted and what to do.
        problem: String,
    },
    /// A file cannot be used.
    File {
        /// Which option names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another option is out of range.
    Value {
        /// Which option.
        option: &'static str,
        /// What was seen.
        seen: String,
        /// What was wanted.
        wanted: &'static str,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { seen, problem } => write!(f, "store.url {seen:?}: {problem}"),
            Self::File { option, path, problem } => write!(f, "{option} {}: {problem}", path.display()),
            Self::Value { option, seen, wanted } => write!(f, "{option} is {seen:?}: {wanted} was wanted"),
        }
    }
}

impl std::error::Error for OptionsError {}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, ca, cert, key, password_file, timeout, prefix, node, confirm } = self;
        let mut parts = f.debug_struct("RedisOptions");
        parts.field("url", &without_password(url)).field("ca", ca).field("cert", cert).field("key", key);
        parts.field("password_file", password_file);
        parts.field("timeout", timeout).field("prefix", prefix).field("node", node).field("confirm", confirm).finish()
    }
}

impl RedisOptions {
    /// Options with the defaults for `url`: a timeout of 50 ms, the prefix `ration`, and confirmation where a cluster
    /// has replicas.
    #[must_use]
    pub fn new(url: &str, node: &str) -> Self {
        Self {
            url: url.to_owned(),
            ca: None,
            cert: None,
            key: None,
            password_file: None,
            timeout: Duration::from_millis(50),
            prefix: "ration".to_owned(),
            node: node.to_owned(),
            confirm: Confirm::Auto,
        }
    }

    /// Checks everything that can be checked without a connection.
    ///
    /// # Errors
    /// The first option that is wrong.
    pub fn validate(&self) -> Result<(), OptionsError> {
        self.target().map(|_| ())
    }

    pub(super) fn target(&self) -> Result<Target, OptionsError> {
        self.check_values()?;
        let password = self.password_file.as_deref().map(read_password).transpose()?;
        let parsed = parse_url(&self.url, password.as_deref());
        let mut target = parsed.map_err(|problem| OptionsError::Url { seen: without_password(&self.url), problem })?;
        if target.dialer.tls.is_some() {
            target.dialer.tls = Some(self.tls()?);
        } else if let Some((option, path)) =
            [("store.ca", &self.ca), ("store.cert", &self.cert), ("store.key", &self.key)]
                .into_iter()
                .find_map(|(option, path)| path.as_ref().map(|path| (option, path)))
        {
            let problem =
                "set, but store.url has no TLS: write rediss:// or rediss-cluster://, or remove it".to_owned();
            return Err(OptionsError::File { option, path: path.clone(), problem });
        }
        Ok(target)
    }

    fn check_values(&self) -> Result<(), OptionsError> {
        let value = |option, seen: String, wanted| Err(OptionsError::Value { option, seen, wanted });
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}' | '*' | '?' | '[' | ']' | '\\');
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.chars().all(plain) {
            return value("store.prefix", self.prefix.clone(), "1 to 64 printable ASCII characters, none of {}*?[]\\,");
        }
        if self.node.is_empty() || self.node.len() > 128 || !self.node.chars().all(|c| c.is_ascii_graphic()) {
            return value("node", self.node.clone(), "1 to 128 printable ASCII characters without spaces");
        }
        if self.timeout < Duration::from_millis(1) || self.timeout > Duration::from_secs(5) {
            return value("store.timeout", format!("{:?}", self.timeout), "1ms to 5s");
        }
        Ok(())
    }

    fn tls(&self) -> Result<Tls, OptionsError> {
        let own = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((read("store.cert", cert)?, read("store.key", key)?)),
            (None, None) => None,
            (Some(path), None) | (None, Some(path)) => {
                let problem = "store.cert and store.key go together: set both or neither".to_owned();
                return Err(OptionsError::File { option: "store.cert/store.key", path: path.clone(), problem });
            }
        };
        let ca = self.ca.as_ref().map(|path| read("store.ca", path)).transpose()?;
        let path = self.cert.clone().or_else(|| self.ca.clone()).unwrap_or_default();
        let bad = |problem: String| OptionsError::File { option: "store.ca/cert/key", path: path.clone(), problem };
        let own = own.as_ref().map(|(cert, key)| (&**cert, &**key));
        Tls::new(ca.as_deref(), own).map_err(|problem| bad(format!("{problem}; a PEM file was wanted")))
    }
}

/// The password in a file, without the end of its line.
fn read_password(path: &Path) -> Result<String, OptionsError> {
    let error = |problem| OptionsError::File { option: "store.password_file", path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|cause| error(format!("cannot be read: {cause}")))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() || password.contains('\n') {
        return Err(error("a file of one line, the password, was wanted".to_owned()));
    }
    Ok(password.to_owned())
}

/// Reads a PEM file. A file without a PEM block is refused here, because the TLS library takes it for an empty one.
fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, OptionsError> {
    let error = |problem| OptionsError::File { option, path: path.to_owned(), problem };
    let bytes = std::fs::read(path).map_err(|cause| error(format!("cannot be read: {cause}")))?;
    let has_block = bytes.windows(11).any(|window| window == b"-----BEGIN ");
    if has_block {
        Ok(bytes)
    } else {
        Err(error("holds no PEM block (-----BEGIN …): a PEM file was wanted".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_stand_in_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        std::fs::write(&path, "p@ss:w/rd\n").expect("a file");
        let with = |url: &str| RedisOptions { password_file: Some(path.clone()), ..RedisOptions::new(url, "n") };
        for (url, user) in [("redis://h", None), ("redis://u@h", Some("u")), ("redis+unix:///r.sock", None)] {
            let dialer = with(url).target().expect("it is right").dialer;
            assert_eq!((dialer.user.as_deref(), dialer.password.as_deref()), (user, Some("p@ss:w/rd")), "{url}");
        }
        let error = with("redis://u:other@h").validate().expect_err("two passwords").to_string();
        assert!(error.contains("remove one of them") && !error.contains("other"), "{error}");
        std::fs::write(&path, "").expect("a file");
        let error = with("redis://h").validate().expect_err("no password").to_string();
        assert!(error.contains("store.password_file") && error.contains("one line"), "{error}");
    }

    #[test]
    fn errors_do_not_show_the_password() {
        let options = RedisOptions::new("redis://me:hunter2@h:x", "n");
        assert!(!format!("{options:?}").contains("hunter2"), "{options:?}");
        let error = options.validate().expect_err("a bad port");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(error.to_string().contains("me:***@h:x"), "{error}");
        let error = RedisOptions::new("me:hunter2@h", "n").validate().expect_err("no scheme");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn braces_in_the_prefix_are_refused() {
        // Braces in the prefix would choose the slot instead of the key's digest.
        let options = RedisOptions { prefix: "a{b}".into(), ..RedisOptions::new("redis://h", "n") };
        assert!(matches!(options.validate(), Err(OptionsError::Value { option: "store.prefix", .. })));
    }

    #[test]
    fn certificates_without_tls_are_an_error() {
        let options = RedisOptions { ca: Some("ca.pem".into()), ..RedisOptions::new("redis://h", "n") };
        assert!(options.validate().expect_err("no TLS").to_string().contains("rediss://"));
        let options = RedisOptions { ca: Some("/nonexistent/ca.pem".into()), ..RedisOptions::new("rediss://h", "n") };
        assert!(options.validate().expect_err("no file").to_string().contains("cannot be read"));
    }
}
