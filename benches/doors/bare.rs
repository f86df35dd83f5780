//! What our doors are measured beside: a tonic service and a hyper server that answer a constant.
//!
//! Each is this program once more, as a process of its own: one thread, tokio's current-thread runtime as our data
//! threads have it, a Unix socket, and all settings as the crate has them.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rationd::serve::envoy::proto::{Code, DescriptorStatus, RateLimitRequest, RateLimitResponse};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic_prost::ProstCodec;

/// What the bare HTTP server says to everything.
const ALLOWED: &str = "{\"limited\":false}";

/// The words that make this program one of them, the socket behind.
pub(crate) const TONIC: &str = "--bare-tonic";
pub(crate) const HYPER: &str = "--bare-hyper";

/// Serves until it is killed, if the program was started for that.
pub(crate) fn serve(arguments: &[String]) -> Option<Result<(), Box<dyn std::error::Error>>> {
    let [_, kind, socket] = arguments else { return None };
    let is_tonic = match kind.as_str() {
        TONIC => true,
        HYPER => false,
        _ => return None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            let listener = bind(Path::new(socket))?;
            if is_tonic { grpc(listener).await } else { http(listener).await }
        })
    }))
}

fn bind(socket: &Path) -> std::io::Result<UnixListener> {
    UnixListener::bind(socket)
}

async fn grpc(listener: UnixListener) -> Result<(), Box<dyn std::error::Error>> {
    Ok(Server::builder().serve_with_incoming(Constant, UnixListenerStream::new(listener)).await?)
}

async fn http(listener: UnixListener) -> Result<(), Box<dyn std::error::Error>> {
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service_fn(|_: Request<hyper::body::Incoming>| {
            ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(ALLOWED.as_bytes())))))
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// What tonic's generated code would make of the service.
#[derive(Clone)]
struct Constant;

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl tower_service::Service<Request<Body>> for Constant {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answering {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(Constant, request).await) })
    }
}

impl UnaryService<RateLimitRequest> for Constant {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<RateLimitRequest>) -> Self::Future {
        let code = Code::Ok.into();
        let statuses = vec![DescriptorStatus { code, ..DescriptorStatus::default() }];
        let response = RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() };
        ready(Ok(tonic::Response::new(response)))
    }
}
