//! tonic's codec with buffers of our size: a request and its answer are short, and tonic's own are 8 KiB each.

use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::proto::{RateLimitRequest, RateLimitResponse};

/// Holds most messages whole; longer ones grow it.
const ENOUGH: usize = 1_000;
/// tonic's own: beyond it an answer is sent in parts.
const SEND_AT: usize = 32 << 10;

/// Reads requests and writes responses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Messages;

impl Codec for Messages {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = ProstDecoder<RateLimitRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(ENOUGH, SEND_AT))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(ENOUGH, SEND_AT))
    }
}
