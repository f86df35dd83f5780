//! A decision as a client sees it: the ten fields in the answer to `RATION.CHECK`.

use std::time::Duration;

use super::{ClientError, Reply};
use crate::core::decision::Verdict;

/// The answer to a check. Where a policy has several limits, the numbers are those of the tightest one; on a denial,
/// those of the limit that denied.
///
/// ```
/// # rationd::example::run(|socket| {
/// # let mut rations = rationd::client::Client::connect(socket)?;
/// let decision = rations.check("api", "user:42", 30)?; // of "100/1d fixed from-first"
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit, decision.remaining), (100, 70));
/// assert_eq!((decision.reason.as_str(), decision.limit_name.as_str()), ("ok", "100/1d fixed from-first"));
/// assert_eq!(decision.retry_after, None);
///
/// let denied = rations.check("api", "user:42", 80)?;
/// assert!(!denied.is_allowed());
/// assert_eq!((denied.remaining, denied.reason.as_str()), (70, "rate")); // nothing is charged for a denial
/// assert!(denied.retry_after.is_some_and(|wait| wait <= denied.reset_after));
///
/// let never = rations.check("api", "user:42", 101)?;
/// assert_eq!((never.retry_after, never.reason.as_str()), (None, "cost"));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The verdict; [`Decision::is_allowed`] returns it as a bool.
    pub verdict: Verdict,
    /// The most tokens that the limit ever has: the count of a window, the burst of a token bucket, the slots of a
    /// concurrent limit; 0 where the policy counts nothing for this key.
    pub limit: u64,
    /// Tokens that are left of `limit` after this check.
    pub remaining: u64,
    /// The wait, in whole milliseconds, after which this cost is admitted if nobody else spends. `None` after an
    /// admission; after a denial, `None` means that no wait helps, because the cost is above `limit` or the key is
    /// blocked.
    pub retry_after: Option<Duration>,
    /// The wait until `limit` tokens are left again if nobody spends, in whole seconds, rounded up.
    pub reset_after: Duration,
    /// The time at which `limit` tokens are left again if nobody spends: milliseconds since the Unix epoch, on the
    /// store's clock.
    pub reset_at_ms: u64,
    /// Why the verdict is what it is, as one word:
    ///
    /// | word | meaning |
    /// |---|---|
    /// | `ok` | there were tokens |
    /// | `rate` | the limit is spent |
    /// | `cost` | the cost is above what the limit ever has |
    /// | `blocked` | the policy blocks this key |
    /// | `shadow` | it would have been denied, but the policy only watches |
    /// | `share` | the store is away, and this node's share of the limit is spent |
    /// | `store` | the store is away, and the policy denies then |
    /// | `overload` | the node is at one of its bounds, or the store answered too late |
    ///
    /// A later daemon may know other words.
    pub reason: String,
    /// The limit that the numbers are of, as it is configured (`100/1s burst 200`); empty where the policy counts
    /// nothing for this key.
    pub limit_name: String,
    /// What the decision is based on, as one word: `lease` (tokens or knowledge that the node held), `store` (the
    /// store was asked for this check), `prefilter` (what is known of the fleet's spending), `share` (of this node,
    /// while the store is away) or `policy` (nothing is counted). A later daemon may know other words.
    pub source: String,
    /// The slot of a concurrent limit that was taken, for [`Client::release`](super::Client::release). It also ends
    /// with the client's connection, and after the limit's period.
    pub slot: Option<String>,
}

impl Decision {
    /// Whether the request was admitted.
    ///
    /// ```
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// let status = if rations.check("api", "user:42", 1)?.is_allowed() { 200 } else { 429 };
    /// assert_eq!(status, 200);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    /// Parses the answer to a check.
    pub(super) fn read(reply: Reply) -> Result<Self, ClientError> {
        Self::from_reply(&reply).ok_or(ClientError::Unexpected { command: "RATION.CHECK", reply })
    }

    /// Parses the answer to `RATION.CHECK`: an array of ten fields, and perhaps a slot. Fields that a later daemon
    /// appends are ignored. `None` when the reply is something else.
    ///
    /// [`Client::check`](super::Client::check) does this itself. It is for commands whose answer begins with a
    /// decision, as `RATION.HOLD`'s does:
    ///
    /// ```
    /// use rationd::client::Decision;
    ///
    /// # rationd::example::run(|socket| {
    /// # let mut rations = rationd::client::Client::connect(socket)?;
    /// let reply = rations.command(&[b"RATION.HOLD", b"api", b"user:42", b"30"])?;
    /// let decision = Decision::from_reply(&reply).ok_or("another kind of daemon")?;
    /// assert!(decision.is_allowed());
    ///
    /// let hold = reply.as_array().and_then(|fields| fields[10].as_bytes()).ok_or("a decision and no id")?;
    /// let charged = rations.command(&[b"RATION.SETTLE", hold, b"12"])?;
    /// assert_eq!(charged.as_integer(), Some(12));
    /// # Ok(()) });
    /// ```
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
