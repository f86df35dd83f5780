//! What an input wishes of a key. `advance.rs` grants it.

use crate::core::ask::Loan;

/// What an input asks for that the key's state does not show.
///
/// Most inputs call `advance` twice: before they change the key, and after. Before a change only what is wished is sent, because the change
/// takes away what that is made of: tokens go back under the limits under which they were lent. After a change all is done that is due in the
/// new state, and what is wished beside it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish<'a> {
    // After an input has changed the key.
    /// Nothing.
    Nothing,
    /// Nothing, because a check has joined an empty line that could not be decided at this moment: nobody in line can be answered yet.
    Wait,
    /// Tokens, even if nobody waits for them: a lease runs low, a remembered denial should be verified, or a check is about to come.
    Tokens,
    /// To tell the store what it has lent, because a peer has reported that the store has lost that; and tokens for those who wait and for what
    /// is owed, but none for checks to come: nobody may ask this node for the key any more, and others would lack them.
    Restore,
    /// So many tokens of a bucket for a check that is about to come. They are asked for as if it waited: it is charged for them at once,
    /// so that nothing has to be reported when it has spent them.
    TokensFor(u64),
    /// To repeat the acquire under way under a new id, because the store did nothing: it knew a higher id, or the acquire came
    /// outside of its time.
    Again,
    /// To turn away all who wait in line, because the acquire was not sent: too many calls were waiting.
    TurnAway,
    /// To look at everything, because the timer is due.
    Look,
    /// To admit those in line with this many tokens of what a peer has lent, and to deny those whom it shows that there is no
    /// more.
    Serve(u64, &'a Loan),

    // Before an input changes the key.
    /// To drop what has ended by now, so that what is learned or spent next is of windows that are open.
    DropEnded,
    /// To leave the limits that applied so far, because others are about to apply.
    LeaveLimits,
    /// To return all that is held, and to report what was spent of buckets, because a refund is about to ask the store, which can
    /// only judge it where nothing is held.
    ReturnAll,
    /// To return what nobody has claimed, because a refund by the store is about to take back as much.
    ReturnUnclaimed,
    /// To report what was spent of a bucket, because a refund is about to ask the store.
    Report,
    /// To return everything, because the node leaves.
    Leave,
    /// To return what is held, and to report what was spent, because the key is about to be forgotten.
    MakeRoom,

    // Beside a check that is answered already.
    /// To try a peer that has had no store, for so many tokens.
    TryPeer(u64),
}

impl Wish<'_> {
    /// For how many tokens a check is about to come; `None`: nothing is asked for that nobody waits for.
    pub(super) fn coming(&self) -> Option<u64> {
        match self {
            Self::TokensFor(cost) => Some(*cost),
            Self::Restore => None,
            _ => Some(0),
        }
    }
}
