//! How to reach the shared store: the options as the configuration gives them, parsed once.
//!
//! URLs: `redis://[user:pass@]host[:port][/db]`, `rediss://…` with TLS, `redis+unix:///path`,
//! `redis-cluster://[user:pass@]h1:p,h2:p,…` and `rediss-cluster://…`. An error says what was seen,
//! what was wanted and what to do, and never shows a password. Opens files, but no connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};

use super::address::{Address, Dialer};

/// Whether a grant is awaited on a replica.
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
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where it is; see the module's doc.
    pub url: String,
    /// Certificates (PEM) that vouch for the servers, instead of the system's.
    pub ca: Option<PathBuf>,
    /// This node's certificate (PEM), with `key`.
    pub cert: Option<PathBuf>,
    /// Its private key (PEM).
    pub key: Option<PathBuf>,
    /// Longest wait for one call.
    pub timeout: Duration,
    /// First part of every key.
    pub prefix: String,
    /// This node's name: unique in the fleet, the same after a restart.
    pub node: String,
    /// Whether a grant is awaited on a replica.
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

/// Where to connect.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) cluster: bool,
    pub(crate) seeds: Vec<Address>,
    pub(crate) dialer: Dialer,
}

impl RedisOptions {
    /// Options with the defaults for `url`: 50 ms, prefix `rationd`, confirmed where it can be.
    #[must_use]
    pub fn new(url: &str, node: &str) -> Self {
        Self {
            url: url.to_owned(),
            ca: None,
            cert: None,
            key: None,
            timeout: Duration::from_millis(50),
            prefix: "rationd".to_owned(),
            node: node.to_owned(),
            confirm: Confirm::Auto,
        }
    }

    /// Checks everything that can be checked without a connection.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), OptionsError> {
        self.target().map(|_| ())
    }

    pub(crate) fn target(&self) -> Result<Target, OptionsError> {
        self.check_values()?;
        let mut target =
            parse_url(&self.url).map_err(|problem| OptionsError::Url { seen: without_password(&self.url), problem })?;
        if target.dialer.tls.is_some() {
            target.dialer.tls = self.tls()?.or(target.dialer.tls);
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

    /// `None`: the system's certificates.
    fn tls(&self) -> Result<Option<ConnectionAddr>, OptionsError> {
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read("store.cert", cert)?, client_key: read("store.key", key)? })
            }
            (None, None) => None,
            (Some(path), None) | (None, Some(path)) => {
                let problem = "store.cert and store.key go together: set both or neither".to_owned();
                return Err(OptionsError::File { option: "store.cert/store.key", path: path.clone(), problem });
            }
        };
        let root_cert = self.ca.as_ref().map(|path| read("store.ca", path)).transpose()?;
        if client_tls.is_none() && root_cert.is_none() {
            return Ok(None);
        }
        let path = self.cert.clone().or_else(|| self.ca.clone()).unwrap_or_default();
        let bad = |problem: String| OptionsError::File { option: "store.ca/cert/key", path: path.clone(), problem };
        let client = Client::build_with_tls("rediss://localhost", TlsCertificates { client_tls, root_cert })
            .map_err(|error| bad(format!("{error}; a PEM file was wanted")))?;
        Ok(Some(client.get_connection_info().addr().clone()))
    }
}

/// Reads a PEM file; one without a PEM block is refused here, because the TLS library takes it for empty.
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

fn parse_url(url: &str) -> Result<Target, String> {
    let wanted = "redis://host:port, rediss://host:port, redis+unix:///path, \
                  redis-cluster://h1:p,h2:p or rediss-cluster://h1:p,h2:p";
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("has no scheme; write {wanted}"))?;
    let (cluster, tls) = match scheme {
        "redis" => (false, false),
        "rediss" => (false, true),
        "redis-cluster" => (true, false),
        "rediss-cluster" => (true, true),
        "redis+unix" => return parse_unix(rest),
        _ => return Err(format!("scheme {scheme:?} is not known; write {wanted}")),
    };
    let (user_info, rest) = rest.rsplit_once('@').map_or((None, rest), |(info, rest)| (Some(info), rest));
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    if let Some(extra) = rest.find(['?', '#']) {
        return Err(format!("{:?} is not understood; remove it", &rest[extra..]));
    }
    let database = match database {
        "" | "0" => 0,
        _ if cluster => return Err("a cluster has database 0 only; remove what follows the hosts".to_owned()),
        text => text.parse().map_err(|_| format!("database {text:?} where a number was wanted"))?,
    };
    let seeds: Vec<_> = hosts
        .split(',')
        .map(|host| Address::parse(host).ok_or_else(|| format!("{host:?} where host:port was wanted")))
        .collect::<Result<_, _>>()?;
    if !cluster && seeds.len() > 1 {
        return Err(format!("{} hosts, but {scheme}:// takes one; for a cluster write redis-cluster://", seeds.len()));
    }
    let (user, password) = parse_user_info(user_info)?;
    let system = || ConnectionAddr::TcpTls { host: String::new(), port: 0, insecure: false, tls_params: None };
    Ok(Target { cluster, seeds, dialer: Dialer { user, password, database, tls: tls.then(system) } })
}

/// `[user:pass@]/path[?db=N]`.
fn parse_unix(rest: &str) -> Result<Target, String> {
    let (user_info, rest) = match rest.find('/').map(|slash| rest.split_at(slash)) {
        Some(("", path)) => (None, path),
        Some((info, path)) => match info.strip_suffix('@') {
            Some(info) => (Some(info), path),
            None => return Err(format!("{info:?} stands before the path; write redis+unix:///path (three slashes)")),
        },
        None => return Err("has no path; write redis+unix:///path (three slashes)".to_owned()),
    };
    let (path, database) = match rest.split_once('?') {
        None => (rest, 0),
        Some((path, query)) => {
            let database = query.strip_prefix("db=").and_then(|text| text.parse().ok());
            (path, database.ok_or_else(|| format!("?{query} where ?db=NUMBER was wanted"))?)
        }
    };
    let (user, password) = parse_user_info(user_info)?;
    let path: Arc<Path> = Path::new(path).into();
    Ok(Target {
        cluster: false,
        seeds: vec![Address::Unix(path)],
        dialer: Dialer { user, password, database, tls: None },
    })
}

fn parse_user_info(info: Option<&str>) -> Result<(Option<String>, Option<String>), String> {
    let Some(info) = info else { return Ok((None, None)) };
    let (user, password) = info.split_once(':').ok_or("user without password; write user:password@ or :password@")?;
    let decode = |text: &str| {
        percent_decode(text).ok_or("a % in user or password that is not a percent-encoded byte; write %25")
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok((user, Some(decode(password)?)))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let value = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The URL with its password masked, for people.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        None => url.to_owned(),
        Some((info, rest)) => {
            let user = info.split_once(':').map_or("", |(user, _)| user);
            format!("{scheme}://{user}:***@{rest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_url() {
        let target = parse_url("redis://u:p%40ss@h:7000/3").expect("a url");
        assert_eq!(target.seeds, [Address::tcp("h", 7000)]);
        assert_eq!((target.dialer.user.as_deref(), target.dialer.password.as_deref()), (Some("u"), Some("p@ss")));
        assert_eq!(target.dialer.database, 3);
        let target = parse_url("rediss-cluster://:secret@a:1,[::1]:2").expect("a url");
        assert!(target.cluster && target.dialer.tls.is_some() && target.dialer.user.is_none());
        assert_eq!(target.seeds, [Address::tcp("a", 1), Address::tcp("::1", 2)]);
        let target = parse_url("redis+unix:///run/redis.sock?db=2").expect("a url");
        assert_eq!(target.seeds, [Address::Unix(Path::new("/run/redis.sock").into())]);
        assert_eq!(target.dialer.database, 2);
    }

    #[test]
    fn a_bad_url_says_what_to_write() {
        for (url, part) in [
            ("localhost:6379", "no scheme"),
            ("http://h", "\"http\" is not known"),
            ("redis://", "host:port was wanted"),
            ("redis://h:x", "\"h:x\""),
            ("redis://a,b", "redis-cluster://"),
            ("redis-cluster://a/1", "database 0 only"),
            ("redis://h/x", "a number"),
            ("redis://h?x=1", "remove it"),
            ("redis://user@h", "user:password@"),
            ("redis+unix://run/x", "three slashes"),
            ("redis://:%zz@h", "%25"),
        ] {
            let problem = parse_url(url).expect_err(url);
            assert!(problem.contains(part), "{url}: {problem}");
        }
    }

    #[test]
    fn errors_do_not_show_the_password() {
        let error = RedisOptions::new("redis://me:hunter2@h:x", "n").validate().expect_err("a bad port");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(error.to_string().contains("me:***@h:x"), "{error}");
    }

    #[test]
    fn braces_in_the_prefix_are_refused() {
        // They would choose the slot instead of the key's digest.
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
