//! Parses the URL of the shared store.
//!
//! Pure: opens nothing. An error says what was seen, what was wanted and what to do. Called by `options.rs`.

use std::path::Path;
use std::sync::Arc;

use super::address::Address;
use super::dialer::Dialer;
use super::stream::Sockets;
use super::tls::Tls;

/// Where to connect.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) cluster: bool,
    pub(super) seeds: Vec<Address>,
    pub(super) dialer: Dialer,
}

/// Parses a URL. `password` is used where the URL has none. TLS trusts the system's certificates until the options
/// say otherwise.
pub(super) fn parse_url(url: &str, password: Option<&str>) -> Result<Target, String> {
    let wanted = "redis://host:port, rediss://host:port, redis+unix:///path, \
                  redis-cluster://h1:p,h2:p or rediss-cluster://h1:p,h2:p";
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("has no scheme; write {wanted}"))?;
    let (cluster, tls) = match scheme {
        "redis" => (false, false),
        "rediss" => (false, true),
        "redis-cluster" => (true, false),
        "rediss-cluster" => (true, true),
        "redis+unix" => return parse_unix(rest, password),
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
    let (user, password) = parse_user_info(user_info, password)?;
    Ok(Target {
        cluster,
        seeds,
        dialer: Dialer { user, password, database, tls: tls.then(Tls::default), network: Arc::new(Sockets) },
    })
}

/// Parses `[user:pass@]/path[?db=N]`.
fn parse_unix(rest: &str, password: Option<&str>) -> Result<Target, String> {
    let (user_info, rest) = match rest.find('/').map(|slash| rest.split_at(slash)) {
        Some(("", path)) => (None, path),
        Some((info, path)) => match info.strip_suffix('@') {
            Some(info) => (Some(info), path),
            None => return Err("something stands before the path; write redis+unix:///path (three slashes)".to_owned()),
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
    let (user, password) = parse_user_info(user_info, password)?;
    let path: Arc<Path> = Path::new(path).into();
    Ok(Target {
        cluster: false,
        seeds: vec![Address::Unix(path)],
        dialer: Dialer { user, password, database, tls: None, network: Arc::new(Sockets) },
    })
}

fn parse_user_info(info: Option<&str>, password: Option<&str>) -> Result<(Option<String>, Option<String>), String> {
    let Some(info) = info else { return Ok((None, password.map(str::to_owned))) };
    let (user, own) = info.split_once(':').map_or((info, None), |(user, own)| (user, Some(own)));
    let decode = |text: &str| {
        percent_decode(text).ok_or("a % in user or password that is not a percent-encoded byte; write %25")
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    match (own, password) {
        (Some(_), Some(_)) => Err("has a password, and so has store.password_file; remove one of them".to_owned()),
        (Some(own), None) => Ok((user, Some(decode(own)?))),
        (None, Some(password)) => Ok((user, Some(password.to_owned()))),
        (None, None) => {
            Err("user without password; write user:password@ or :password@, or set store.password_file".to_owned())
        }
    }
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

/// The URL with its password masked, to be shown to people.
pub(super) fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    match rest.rsplit_once('@') {
        None => url.to_owned(),
        Some((info, rest)) => {
            let user = info.split_once(':').map_or("", |(user, _)| user);
            format!("{scheme}{separator}{user}:***@{rest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_url() {
        let target = parse_url("redis://u:p%40ss@h:7000/3", None).expect("a url");
        assert_eq!(target.seeds, [Address::tcp("h", 7000)]);
        assert_eq!((target.dialer.user.as_deref(), target.dialer.password.as_deref()), (Some("u"), Some("p@ss")));
        assert_eq!(target.dialer.database, 3);
        let target = parse_url("rediss-cluster://:secret@a:1,[::1]:2", None).expect("a url");
        assert!(target.cluster && target.dialer.tls.is_some() && target.dialer.user.is_none());
        assert_eq!(target.seeds, [Address::tcp("a", 1), Address::tcp("::1", 2)]);
        let target = parse_url("redis+unix:///run/redis.sock?db=2", None).expect("a url");
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
            let problem = parse_url(url, None).expect_err(url);
            assert!(problem.contains(part), "{url}: {problem}");
        }
    }
}
