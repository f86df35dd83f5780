//! gRPC's frames for the only method: one message in, one message out, or a status.
//!
//! This does what tonic does, without tonic's streams, 8 KiB buffers and boxed bodies. `connection.rs` sends the answers. Compressed messages are
//! refused, since no compression is offered. Statuses are tonic's.

use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName};
use prost::Message;
use tonic::Status;

use super::answer::FRAME_HEAD;
use super::counted::Counted;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// A message with the head of its frame.
pub(super) type Answer = Vec<u8>;

/// Reads the only message of a request, which may have `most` bytes.
pub(super) async fn receive<M: Message + Default>(
    head: &HeaderMap,
    mut body: Counted,
    most: usize,
) -> Result<M, Status> {
    if let Some(encoding) = head.get(ENCODING).filter(|encoding| encoding.as_bytes() != b"identity") {
        let seen = String::from_utf8_lossy(encoding.as_bytes());
        return Err(Status::unimplemented(format!("Content is compressed with `{seen}` which isn't supported")));
    }
    let (mut first, mut rest) = (Bytes::new(), Vec::new());
    // Trailers behind the data have no meaning in a request.
    while let Some(data) = body.data().await {
        let data = data?;
        if first.is_empty() {
            first = data;
        } else {
            // The message came in several pieces, which is rare.
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
        let bytes: &[u8] = if rest.is_empty() { &first } else { &rest };
        if length(bytes, most)?.is_some_and(|length| bytes.len() > FRAME_HEAD + length) {
            return Err(Status::internal("more than one message was sent"));
        }
    }
    let bytes: &[u8] = if rest.is_empty() { &first } else { &rest };
    match length(bytes, most)? {
        None if bytes.is_empty() => Err(Status::internal("Missing request message.")),
        Some(length) if bytes.len() == FRAME_HEAD + length => {
            M::decode(&bytes[FRAME_HEAD..]).map_err(|error| Status::internal(error.to_string()))
        }
        _ => Err(Status::internal("Unexpected EOF decoding stream.")),
    }
}

/// The length of the message that begins with these bytes; `None` when they are too few to tell.
fn length(bytes: &[u8], most: usize) -> Result<Option<usize>, Status> {
    match bytes {
        [] | [0] => Ok(None),
        [0, rest @ ..] => {
            let Some(length) = rest.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else {
                return Ok(None);
            };
            if length > most {
                return Err(Status::out_of_range(format!(
                    "Error, decoded message length too large: found {length} bytes, the limit is: {most} bytes"
                )));
            }
            Ok(Some(length))
        }
        [1, ..] => Err(Status::internal(
            "protocol error: received message with compressed-flag but no grpc-encoding was specified",
        )),
        [flag, ..] => Err(Status::internal(format!(
            "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_known_once_its_five_bytes_are_there() {
        let known = |bytes: &[u8]| length(bytes, 300).map_err(|status| status.code());
        for short in [&b""[..], b"\0", b"\0\0\0\0"] {
            assert_eq!(known(short), Ok(None));
        }
        assert_eq!(known(b"\0\0\0\x01\x2c"), Ok(Some(300)));
        assert_eq!(known(b"\0\0\0\x01\x2drest"), Err(tonic::Code::OutOfRange));
        assert_eq!(known(b"\x01"), Err(tonic::Code::Internal));
        assert_eq!(known(b"\x02\0\0\0\0"), Err(tonic::Code::Internal));
    }
}
