//! The admin address: metrics, health, a page for people, and checks, over HTTP/1.1.
//!
//! Meant for a loopback address: there is no authentication. hyper parses, because
//! an own parser would be one more surface to defend. Bounded in connections, header size and time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, ORIGIN};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::hub::Hub;

/// Connections served at once; more wait in the listener's queue.
const MOST: usize = 64;
/// Longest wait for a request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(300);

/// What the admin address tells.
pub trait Tell: Send + Sync + 'static {
    /// All metrics as Prometheus text. May take locks, never long ones.
    fn metrics(&self) -> String;
    /// Why checks should not be sent here now; `None`: they are served.
    fn not_ready(&self) -> Option<&'static str>;
    /// One paragraph for people.
    fn summary(&self) -> String;
    /// What answers `/v1/…`.
    fn hub(&self) -> &Hub;
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
    /// The operating system refuses.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The address, with the port that was chosen.
    ///
    /// # Errors
    /// The operating system does not know it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn run(self, tell: Arc<dyn Tell>) {
        let places = Arc::new(Semaphore::new(MOST));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(LIFE, serve(stream, tell)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin address could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, tell: Arc<dyn Tell>) {
    let service = service_fn(move |request| {
        let tell = tell.clone();
        async move { Ok::<_, Infallible>(answer(request, &*tell).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the admin address ended badly");
    }
}

async fn answer(request: Request<Incoming>, tell: &dyn Tell) -> Response<Full<Bytes>> {
    if request.uri().path().starts_with("/v1/") {
        // A page that a browser on this host shows could charge keys: none has business here.
        if request.headers().contains_key(ORIGIN) {
            return text(StatusCode::FORBIDDEN, "not for web pages: the request has an Origin\n".into());
        }
        return super::http::answer(tell.hub(), request).await;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served here\n".into());
        refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/metrics" => {
            let mut response = text(StatusCode::OK, tell.metrics());
            let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        "/livez" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" => match tell.not_ready() {
            None => text(StatusCode::OK, "ok\n".into()),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        "/" => text(StatusCode::OK, tell.summary()),
        _ => text(StatusCode::NOT_FOUND, "nothing here: /metrics /livez /readyz /v1/check /v1/explain /\n".into()),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
