//! Requests on the TCP address: whose they are, and whether a web page may have sent them.
//!
//! A client that has to be a user says so in each request (`Authorization: Basic`, RFC 7617). Where it has not,
//! requests are held to the rules of the admin address.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;

use super::form::host;
use super::origin::{self, Names};
use super::reply::HttpError;
use crate::serve::caller::Caller;
use crate::serve::server_state::ServerState;

/// Who has sent this request.
///
/// # Errors
/// It has to be a user and is none, or a web page may have sent it.
pub(super) fn caller(state: &ServerState, head: &Parts) -> Result<Caller, HttpError> {
    let access = state.remote.load();
    let Some(users) = &access.users else {
        let next = "use an IP address or localhost, or let clients be users (listen.tcp_users)";
        let names = Names { known: &[], next };
        let host = host(head)?;
        if let Some(detail) = origin::refusal(head, &host, access.tls.is_none().then_some(&names)) {
            return Err(HttpError { status: StatusCode::FORBIDDEN, detail });
        }
        return Ok(Caller::Remote(None));
    };
    let field = head.headers.get(AUTHORIZATION).and_then(|field| field.to_str().ok());
    let login = field.and_then(credentials);
    match login.filter(|(user, password)| users.is_right(user, password)) {
        Some((user, _)) => Ok(Caller::Remote(Some(user.into()))),
        None => {
            let detail = "who asks over TCP is to be known: a user of listen.tcp_users and its password are wanted \
                          (Authorization: Basic)";
            Err(HttpError { status: StatusCode::UNAUTHORIZED, detail: detail.into() })
        }
    }
}

/// The user and the password in a field like `Basic dXNlcjpwYXNz`.
fn credentials(field: &str) -> Option<(String, Vec<u8>)> {
    let (scheme, coded) = field.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(coded.trim()).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    let user = String::from_utf8(pair[..colon].to_vec()).ok()?;
    Some((user, pair[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_what_stands_before_the_first_colon() {
        let seen = credentials("Basic QWxhZGRpbjpvcGVuOnNlc2FtZQ==").expect("it is right");
        assert_eq!(seen, ("Aladdin".to_owned(), b"open:sesame".to_vec()));
        assert_eq!(credentials("basic  dTo=").expect("the scheme's case is free").1, b"");
        for wrong in ["", "Basic", "Basic ####", "Bearer dTo=", "Basic dQ=="] {
            assert_eq!(credentials(wrong), None, "{wrong}");
        }
    }
}
