//! A gRPC client of the Rate Limit Service.

#![allow(unreachable_pub, reason = "as in support/mod.rs")]

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rationd::config::ListenAddress;
use rationd::serve::envoy::proto::{Kind, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// One connection, blocking.
pub struct Rls {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

/// Connects to a Unix socket whatever it is asked for.
struct Dial(std::path::PathBuf);

impl tower_service::Service<Uri> for Dial {
    type Response = TokioIo<tokio::net::UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

impl Rls {
    pub fn connect(door: &ListenAddress) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let channel = runtime.block_on(async {
            match door {
                ListenAddress::Path(path) => {
                    Endpoint::from_static("http://rationd").connect_with_connector(Dial(path.clone())).await
                }
                ListenAddress::Address(address) => {
                    Endpoint::from_shared(format!("http://{address}")).expect("a URI").connect().await
                }
            }
        });
        Self { runtime, channel: channel.expect("the door is open") }
    }

    /// The answer.
    pub fn ask(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        let asked = ask(self.channel.clone(), request.clone(), SHOULD_RATE_LIMIT);
        self.runtime.block_on(asked).expect("an answer")
    }

    /// The answers of `count` requests at once.
    pub fn ask_at_once(&self, request: &RateLimitRequest, count: usize) -> Vec<RateLimitResponse> {
        self.runtime.block_on(async {
            let one = || tokio::spawn(ask(self.channel.clone(), request.clone(), SHOULD_RATE_LIMIT));
            let tasks: Vec<_> = (0..count).map(|_| one()).collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.expect("no panic").expect("an answer"));
            }
            answers
        })
    }

    /// Asks all of these at once, and hands over each answer when it is there, until `note` wants no more.
    pub fn ask_each(
        &self,
        requests: Vec<RateLimitRequest>,
        mut note: impl FnMut(Result<RateLimitResponse, Status>) -> ControlFlow<()>,
    ) {
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for request in requests {
                tasks.spawn(ask(self.channel.clone(), request, SHOULD_RATE_LIMIT));
            }
            while let Some(answer) = tasks.join_next().await {
                if note(answer.expect("no panic")).is_break() {
                    return;
                }
            }
        });
    }

    /// The answers of all of these at once.
    pub fn ask_all(&self, requests: Vec<RateLimitRequest>) -> Vec<Result<RateLimitResponse, Status>> {
        let mut answers = Vec::new();
        self.ask_each(requests, |answer| {
            answers.push(answer);
            ControlFlow::Continue(())
        });
        answers
    }

    /// Asks, and resets the stream when there is no answer in time.
    pub fn give_up(&mut self, request: &RateLimitRequest, after: std::time::Duration) -> Option<RateLimitResponse> {
        let asked = ask(self.channel.clone(), request.clone(), SHOULD_RATE_LIMIT);
        let answered = self.runtime.block_on(async { tokio::time::timeout(after, asked).await });
        answered.ok().map(|answer| answer.expect("an answer"))
    }

    /// The error.
    pub fn refused(&mut self, request: &RateLimitRequest) -> String {
        let asked = ask(self.channel.clone(), request.clone(), SHOULD_RATE_LIMIT);
        problem(self.runtime.block_on(asked))
    }

    /// The error of another method.
    pub fn refused_at(&mut self, path: &'static str) -> String {
        problem(self.runtime.block_on(ask(self.channel.clone(), RateLimitRequest::default(), path)))
    }

    /// The answer to a message that consists of these bytes.
    pub fn ask_raw(&mut self, bytes: Vec<u8>) -> Result<RateLimitResponse, Status> {
        let channel = self.channel.clone();
        self.runtime.block_on(async {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = hyper::http::uri::PathAndQuery::from_static(SHOULD_RATE_LIMIT);
            grpc.unary(Request::new(bytes), path, Raw).await.map(tonic::Response::into_inner)
        })
    }
}

async fn ask(channel: Channel, request: RateLimitRequest, path: &'static str) -> Result<RateLimitResponse, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = hyper::http::uri::PathAndQuery::from_static(path);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    grpc.unary(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}

/// What its metadata says under this name.
pub fn told<'r>(response: &'r RateLimitResponse, name: &str) -> &'r str {
    let metadata = response.dynamic_metadata.as_ref().expect("metadata");
    match metadata.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Kind::Text(text)) => text,
        other => panic!("{name} is {other:?}"),
    }
}

fn problem(answer: Result<RateLimitResponse, Status>) -> String {
    let error = answer.expect_err("it is refused");
    format!("{:?}: {}", error.code(), error.message())
}

/// Sends bytes as they are.
#[derive(Default)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = RateLimitResponse;
    type Encoder = Self;
    type Decoder = tonic_prost::ProstDecoder<RateLimitResponse>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        tonic_prost::ProstDecoder::default()
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}
