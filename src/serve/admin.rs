//! The admin address: metrics, health, a page for people, and checks where they are configured, over HTTP/1.1.
//!
//! It is meant for a loopback address: there is no authentication, and every program of the host can reach it,
//! including web pages in a browser. So `origin` judges where a request comes from, and a request that a web page can
//! send without the user's knowledge charges nothing. hyper parses, because a parser of our own would be one more
//! attack surface. Connections, header size and time are bounded, and health checks get a connection even when other
//! clients hold all of them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::caller::Caller;
use super::daemon_status::DaemonStatus;
use super::http::form::host;
use super::http::origin::{self, Names};
use super::http::reply::{HttpError, not_allowed, problem};
use super::http::stream::{Bounds, Progress, converse};
use super::http::texts::Texts;
use super::status_page::{Events, StatusPage};
use crate::store::turns::Asker;

/// Connections served at once. A further one replaces the oldest connection without a request, or else the oldest of
/// all, so that nobody can occupy all of them.
const MOST: usize = 64;
/// Longest wait for the whole head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest life of a connection: a client that holds one loses it after five minutes.
const LIFE: Duration = Duration::from_secs(300);
/// Bounds of one connection.
const BOUNDS: Bounds = Bounds { head: 16 << 10, line: 8 << 10, rest: PATIENCE, half: PATIENCE };

/// Why checks are refused unless they are configured.
const NO_CHECKS: &str = "checks are not served on the admin address, which every program of this host can reach \
     whatever listen.mode and listen.allow_uids say: ask on the Unix socket, or set listen.admin_checks = true";

/// Which requests are answered.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// `/v1/…` is served.
    pub checks: bool,
    /// Keys are on the status page.
    pub keys: bool,
    /// Host names that requests may use for this address, beside `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

/// A bound admin address.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
}

impl Admin {
    /// Binds `address`; port 0 lets the operating system choose.
    ///
    /// # Errors
    /// The operating system refuses the address.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// A listener that another process has bound.
    ///
    /// # Errors
    /// The operating system refuses to register it.
    pub fn adopt(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener: TcpListener::from_std(listener)? })
    }

    /// The address, with the port that was chosen.
    ///
    /// # Errors
    /// The operating system does not tell it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the future is dropped.
    pub async fn run(self, daemon: Arc<dyn DaemonStatus>, access: Access) {
        let page = Arc::new(StatusPage::new(access.keys));
        let access = Arc::new(access);
        let mut open: VecDeque<(AbortHandle, Arc<Progress>)> = VecDeque::with_capacity(MOST);
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    open.retain(|(connection, _)| !connection.is_finished());
                    // The connection limit is reached. Without eviction, requests that were begun and never finished
                    // would keep health checks out until they time out.
                    if open.len() >= MOST {
                        let idle = open.iter().position(|(_, progress)| !progress.is_answering());
                        if let Some((oldest, _)) = open.remove(idle.unwrap_or(0)) {
                            oldest.abort();
                        }
                    }
                    let progress = Arc::<Progress>::default();
                    let served = serve(stream, daemon.clone(), (access.clone(), page.clone()), progress.clone());
                    let served = tokio::spawn(async move { drop(tokio::time::timeout(LIFE, served).await) });
                    open.push_back((served.abort_handle(), progress));
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin address could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    daemon: Arc<dyn DaemonStatus>,
    (access, page): (Arc<Access>, Arc<StatusPage>),
    progress: Arc<Progress>,
) {
    let answering = |request| {
        let (daemon, access, page) = (daemon.clone(), access.clone(), page.clone());
        async move { answer(request, daemon, &access, &page).await }
    };
    converse(stream, Vec::new(), &BOUNDS, progress, daemon.state().admission.account(), answering, |_| false).await;
}

/// A whole body, or one that goes on.
type Reply = Response<Either<Full<Bytes>, Events>>;

async fn answer(
    request: Request<Incoming>,
    daemon: Arc<dyn DaemonStatus>,
    access: &Access,
    page: &Arc<StatusPage>,
) -> Reply {
    let (head, body) = request.into_parts();
    let host = match host(&head) {
        Ok(host) => host,
        Err(refusal) => return whole(HttpError::into_reply(refusal)),
    };
    let path = head.uri.path();
    // Health endpoints skip the origin check: they reveal nothing that a web page could use, and a probe that is
    // refused would have the daemon killed.
    let next = "use an IP address or localhost, or add the name to listen.admin_hosts";
    let names = Names { known: &access.hosts, next };
    if let Some(why) = origin::refusal(&head, &host, Some(&names)).filter(|_| !matches!(path, "/livez" | "/readyz")) {
        return whole(problem(StatusCode::FORBIDDEN, &why));
    }
    if path.starts_with("/v1/") {
        if !access.checks {
            return whole(problem(StatusCode::FORBIDDEN, NO_CHECKS));
        }
        if path == "/v1/check" && head.method == Method::GET {
            let why =
                ": on the admin address a GET charges nothing, because web pages can send it (on the socket it does)";
            return whole(not_allowed(&head.method, &[Method::HEAD, Method::POST], why));
        }
        // The checks above are those that the TCP address makes of clients without a user, so the request counts as one
        // of a process of this host, whose uid is nobody's.
        let (request, local) = (Request::from_parts(head, body), Caller::Process(u32::MAX));
        return whole(
            super::http::answer(daemon.state(), &Texts::default(), request, Some(local), Asker::new(None, 0)).await,
        );
    }
    if !matches!(head.method, Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served here\n".into());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return whole(refusal);
    }
    if path == "/events" && head.method == Method::GET {
        let Some(events) = page.events(daemon) else {
            return whole(problem(StatusCode::SERVICE_UNAVAILABLE, "as many look at the status page as may"));
        };
        let mut response = Response::new(Either::Right(events));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return response;
    }
    whole(read(&head, path, &*daemon, access, page))
}

fn whole(response: Response<Full<Bytes>>) -> Reply {
    response.map(Either::Left)
}

/// The answer to a request that charges nothing.
fn read(
    head: &Parts,
    path: &str,
    daemon: &dyn DaemonStatus,
    access: &Access,
    page: &StatusPage,
) -> Response<Full<Bytes>> {
    match path {
        "/metrics" => {
            let mut response = text(StatusCode::OK, daemon.metrics());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        "/livez" => match daemon.not_alive() {
            None => text(StatusCode::OK, "ok\n".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/readyz" => match daemon.not_ready() {
            None => text(StatusCode::OK, "ok\n".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/top.json" => {
            let mut response = text(StatusCode::OK, format!("{}\n", page.figures(daemon)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        "/" if wants_html(head) => {
            let (html, policy) = page.html(daemon);
            let mut response = text(StatusCode::OK, html);
            let fields = response.headers_mut();
            fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if let Ok(policy) = HeaderValue::try_from(policy) {
                fields.insert(CONTENT_SECURITY_POLICY, policy);
            }
            response
        }
        "/" => text(StatusCode::OK, format!("{}\n{}\n", daemon.summary(), access.paths())),
        _ => text(StatusCode::NOT_FOUND, format!("nothing here: {} /\n", access.paths())),
    }
}

/// Whether a browser asks, and not a program.
fn wants_html(head: &Parts) -> bool {
    head.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}

impl Access {
    /// The served paths, for people.
    fn paths(&self) -> &'static str {
        match self.checks {
            true => "/metrics /livez /readyz /top.json /events /v1/check /v1/explain",
            false => "/metrics /livez /readyz /top.json /events",
        }
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
