//! A decision as a client sees it: the ten fields of `RATION.CHECK`'s answer.

use std::time::Duration;

use super::{ClientError, Reply};
use crate::core::decision::Verdict;

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub verdict: Verdict,
    /// Tokens the limit holds when it is whole.
    pub limit: u64,
    /// Tokens that are left.
    pub remaining: u64,
    /// The wait after which this cost is admitted if nobody else spends. Only on a denial; `None`
    /// there means never.
    pub retry_after: Option<Duration>,
    /// The wait until the limit is whole again, in whole seconds, rounded up.
    pub reset_after: Duration,
    /// When the limit is whole again: Unix milliseconds on the store's clock.
    pub reset_at_ms: u64,
    /// Why: `ok`, `rate`, `share`, `store`, `cost`, `blocked`, `shadow`, `overload`, or a word that a
    /// later daemon knows.
    pub reason: String,
    /// The limit that fills the numbers, as it is configured; empty when the policy counts nothing.
    pub limit_name: String,
    /// What answered: `lease`, `store`, `prefilter`, `share`, `policy`, or a later word.
    pub source: String,
    /// The slot that was taken of a concurrent limit: to be released, and ended with the connection.
    pub slot: Option<String>,
}

impl Decision {
    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// The answer to a check.
    pub(super) fn read(reply: Reply) -> Result<Self, ClientError> {
        Self::from_reply(&reply).ok_or(ClientError::Unexpected { command: "RATION.CHECK", reply })
    }

    /// Reads the daemon's flat array. `None`: the reply is something else. Fields that a later daemon
    /// appends are ignored.
    #[must_use]
    pub fn from_reply(reply: &Reply) -> Option<Self> {
        let fields = reply.as_array()?;
        let signed = |index: usize| fields.get(index).and_then(Reply::as_integer);
        let number = |index: usize| signed(index).and_then(|value| u64::try_from(value).ok());
        let word = |index: usize| Some(String::from_utf8_lossy(fields.get(index)?.as_bytes()?).into_owned());
        let verdict = match signed(0)? {
            0 => Verdict::Allow,
            1 => Verdict::Deny,
            _ => return None,
        };
        Some(Self {
            verdict,
            limit: number(1)?,
            remaining: number(2)?,
            retry_after: u64::try_from(signed(5)?).ok().map(Duration::from_millis),
            reset_after: Duration::from_secs(number(4)?),
            reset_at_ms: number(6)?,
            reason: word(7)?,
            limit_name: word(8)?,
            source: word(9)?,
            slot: word(10).filter(|slot| !slot.is_empty()),
        })
    }
}
