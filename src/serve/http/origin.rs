//! Whether a request may come from a web page. A page of any site can have a browser send requests to an address of
//! the browser's host, which must neither read what is counted there nor spend it.

use std::net::IpAddr;

use hyper::header::ORIGIN;
use hyper::http::request::Parts;

/// Host names that requests may use for an address, beside `localhost` and IP addresses, and what to do about others.
pub(crate) struct Names<'a> {
    pub(crate) known: &'a [String],
    pub(crate) next: &'static str,
}

/// Why a request for `host` is refused; `None` when it can have come from a program that means this address. Without
/// `names` every host is accepted, because a certificate says whose the address is.
pub(crate) fn refusal(head: &Parts, host: &str, names: Option<&Names<'_>>) -> Option<String> {
    if let Some(Names { next, .. }) = names.filter(|names| !names.include(host)) {
        return Some(format!(
            "the Host '{}' is not known here, and a web page of that name may ask: {next}",
            host.escape_debug()
        ));
    }
    // Browsers send this field themselves, and a page cannot prevent it.
    let site = head.headers.get("sec-fetch-site").map(|site| site.as_bytes().trim_ascii());
    if site.is_some_and(|site| !matches!(site, b"none" | b"same-origin")) {
        return Some("not for web pages: the request has a Sec-Fetch-Site of another site".into());
    }
    let has_origin = head.headers.contains_key(ORIGIN) && head.uri.path().starts_with("/v1/");
    has_origin.then(|| "not for web pages: the request has an PeerIndex".into())
}

impl Names<'_> {
    /// Whether a request for this host means this address. Whoever owns a host name can make it resolve to this
    /// address (DNS rebinding), but not an IP address. An empty host is accepted, because browsers always send one.
    fn include(&self, host: &str) -> bool {
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        let name = host.trim_end_matches('.');
        host.is_empty()
            || plain.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.known.iter().any(|known| name.eq_ignore_ascii_case(known.trim_end_matches('.')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_here_only_if_they_are_listed() {
        let known = ["App-17.internal".to_owned()];
        let names = Names { known: &known, next: "" };
        for host in
            ["", "localhost", "LOCALHOST", "127.0.0.1", "10.1.2.3", "[::1]", "app-17.internal.", "app-17.INTERNAL"]
        {
            assert!(names.include(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "app-17", "internal"] {
            assert!(!names.include(host), "{host}");
        }
    }
}
