//! Envoy's requests, by the door that speaks gRPC.
//!
//! Holds: what the messages' types read is written and read as the same; the door answers what they read, one status for
//! each descriptor, or refuses it with a code that says why; and it never answers what they do not read.

use std::sync::{Mutex, PoisonError};

use prost::Message;
use rationd::config::ListenAddress;
use rationd::serve::envoy::proto::RateLimitRequest;
use tonic::Code;

use super::daemon;

#[allow(dead_code, missing_docs, reason = "the tests use the rest of it")]
#[path = "../../tests/support/envoy.rs"]
mod rls;

/// What requests are made of.
pub const WORDS: &[&[u8]] = &[
    b"\x0a\x04edge",
    b"\x12\x0b\x0a\x09\x0a\x04user\x12\x01x",
    b"\x0a\x09\x0a\x04user\x12\x01x",
    b"\x0a\x0c\x0a\x04plan\x12\x04gold",
    b"\x18\x05",
    b"\x18\xff\xff\xff\xff\x0f",
    b"\x12\x04\x08\x05\x10\x02",
    b"\x1a\x02\x08\x03",
    b"\x20\x01",
    b"\x12\x00",
    b"\x0a\x00",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0b\x0c",
    b"\x80",
];

static CLIENT: Mutex<Option<rls::Rls>> = Mutex::new(None);

/// See the module.
pub fn run(input: &[u8]) {
    let read = RateLimitRequest::decode(input);
    if let Ok(request) = &read {
        let again = request.encode_to_vec();
        assert_eq!(RateLimitRequest::decode(&again[..]).as_ref(), Ok(request));
    }
    let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    let client = client.get_or_insert_with(|| rls::Rls::connect(&ListenAddress::Path(daemon::served().door.clone())));
    match (read, client.ask_raw(input.to_vec())) {
        (Ok(request), Ok(response)) => {
            assert!(!request.domain.is_empty());
            assert_eq!(response.statuses.len(), request.descriptors.len());
            assert!([1, 2].contains(&response.overall_code), "{response:?}");
            let is_denied = response.statuses.iter().any(|status| status.code == 2);
            assert_eq!(response.overall_code == 2, is_denied, "{response:?}");
        }
        (Ok(request), Err(status)) => {
            let is_told = [Code::InvalidArgument, Code::PermissionDenied, Code::Unavailable, Code::ResourceExhausted];
            assert!(is_told.contains(&status.code()), "{status:?} to {request:?}");
            assert!(!status.message().is_empty());
        }
        (Err(_), Err(status)) => {
            assert!([Code::Internal, Code::InvalidArgument].contains(&status.code()), "{status:?}")
        }
        (Err(problem), Ok(response)) => panic!("{problem}, and yet it is answered: {response:?}"),
    }
}
