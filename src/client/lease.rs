//! A lease of tokens to a limiter: the answer to `RATION.LEASE`.

use std::time::Duration;

use super::{ClientError, Decision, Reply};

/// The tokens, their life, and the decision behind them.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) granted: u64,
    pub(super) life: Duration,
    pub(super) decision: Decision,
}

impl Lease {
    /// Parses the daemon's flat array.
    pub(super) fn read(reply: Reply) -> Result<Self, ClientError> {
        let read = || {
            let fields = reply.as_array()?;
            let number = |index: usize| fields.get(index)?.as_integer().and_then(|value| u64::try_from(value).ok());
            let decision = Decision::from_reply(&Reply::Array(fields.get(2..)?.to_vec()))?;
            Some(Self { granted: number(0)?, life: Duration::from_millis(number(1)?), decision })
        };
        read().ok_or_else(|| ClientError::Unexpected { command: "RATION.LEASE", reply: reply.clone() })
    }
}
