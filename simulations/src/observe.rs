//! The events of a run and their listeners: the world reports, and checkers and the ledger listen. No listener can
//! change anything.

use std::fmt::Debug;
use std::num::NonZeroU64;
use std::sync::Arc;

use rationd::core::ask::{Answer, Ask};
use rationd::core::call::{Call, Counter, Grant};
use rationd::core::decision::Decision;
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;
use rationd::core::usage::Usage;
use rationd::store::excerpt::{Excerpt, Occupied};

use crate::checkers::Sheet;
use crate::frames::Frames;
use crate::plan::{Fault, Plan};

/// When something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// True microseconds since the start.
    pub at: u64,
    /// True time as a store without skew shows it.
    pub store: Timestamp,
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A check that charges.
    Check,
    /// A check that charges nothing.
    Peek,
    /// A cost taken back.
    Refund,
    /// A key forgotten.
    Reset,
}

/// One request of a client. Keys count from 0 over all demands; `Setting::keys` says their policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Grows over the run.
    pub id: u64,
    /// The node that is asked.
    pub node: u32,
    /// The key.
    pub key: u32,
    /// The policy, by its place in the plan.
    pub policy: u32,
    /// Tokens.
    pub cost: u64,
    /// What is asked.
    pub kind: Kind,
    /// True microseconds since the start.
    pub asked: u64,
}

/// What happens to a hold.
#[derive(Clone, Copy, Debug)]
pub enum Holding<'a> {
    /// A check was admitted, and its node keeps it as a hold.
    Kept {
        /// The check.
        request: &'a Request,
        /// How long it can be settled, in microseconds of the node's clock.
        ttl: u64,
    },
    /// A client said in time what it really was.
    Settles {
        /// Tokens.
        actual: u64,
    },
    /// A step of settling: a request that is about to reach the node.
    Asks(&'a Request),
    /// The client was told that so many tokens stand charged.
    Stands(u64),
}

/// What happens to several keys that are asked at once.
#[derive(Clone, Copy, Debug)]
pub enum Together<'a> {
    /// They reached their node; one is asked after the other.
    Begins {
        /// How many.
        keys: usize,
    },
    /// One of them is asked by this request.
    Asks {
        /// See there.
        request: &'a Request,
    },
    /// What this request was charged goes back.
    GoesBack {
        /// See there.
        request: &'a Request,
    },
    /// The client has its answer.
    Ends {
        /// One was denied, and none is charged.
        denied: bool,
    },
}

/// Tokens of one node, over all its keys, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Lent to it.
    pub granted: u64,
    /// Spent by checks.
    pub spent: u64,
    /// Handed back.
    pub returned: u64,
    /// Lapsed.
    pub expired: u64,
    /// Held now.
    pub held: u64,
}

/// A node's record that a script dropped when another node asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The name of its field.
    pub record: String,
    /// The census period in which its node had asked last, by the limits that this went by.
    pub asked_in: u64,
    /// The id of that acquire.
    pub id: u64,
    /// The id of its last return, refund or reset; 0 for none.
    pub other: u64,
}

/// What a script found in a key's hash and left there, as far as it concerns the node that asked.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// The name of the node that asked.
    pub node: Arc<str>,
    /// What it found, and what it left. It is large, and the watch keeps a copy of each `Ran` for a while.
    pub hash: Arc<[Option<Excerpt>; 2]>,
    /// The same of slots of a concurrent limit, of which those of all nodes concern each.
    pub slots: [Option<Occupied>; 2],
    /// It deleted the hash.
    pub deleted: bool,
    /// Records of other nodes that it dropped.
    pub dropped: Vec<Dropped>,
    /// Something that concerns no call of this node: a field that it wrote, or one that no script writes.
    pub stray: Option<String>,
    /// The script is one of the build before.
    pub is_earlier: bool,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// A request reached its node.
    Asked(&'a Request),
    /// Its answer. `rule` is what the node went by.
    Answered {
        /// The request.
        request: &'a Request,
        /// What the node went by.
        rule: &'a Arc<Rule>,
        /// The answer.
        decision: &'a Decision,
        /// It had to wait for the store.
        parked: bool,
        /// The clock of the master that owns the key, now.
        store: Timestamp,
    },
    /// A node has taken a refund, and has not answered it yet. `kept` is how much went back into its lease, by the
    /// node's own sums; `None` if these do not show it, because a waiter was served with it.
    TakenBack {
        /// The request.
        request: &'a Request,
        /// What the node goes by.
        rule: &'a Arc<Rule>,
        /// See there.
        kept: Option<u64>,
        /// The clock of the master that owns the key, now.
        store: Timestamp,
    },
    /// The node died before it answered: nobody waits any more.
    Orphaned(&'a Request),
    /// Something about the hold that began with the request of this id.
    Hold(u64, Holding<'a>),
    /// Something about several keys that are asked at once, all or nothing.
    Together {
        /// Which, over the whole run.
        group: u64,
        /// The node.
        node: u32,
        /// See there.
        what: Together<'a>,
    },
    /// How long a client will keep the permit of a concurrent limit that it was just given, whatever happens to its
    /// node. Nobody in the world knows this.
    Keeps {
        /// The node.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// Its id, as the decision told it.
        permit: NonZeroU64,
        /// True microseconds since the start.
        until: u64,
    },
    /// A node was told that a permit of a concurrent limit ends: by its client, or by the end of the connection over
    /// which it was taken.
    Released {
        /// The node.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// Its id, as the decision told it.
        permit: NonZeroU64,
        /// Whether the node knew it.
        released: bool,
    },
    /// A server ran a script.
    Executed {
        /// The master's place; see `stale`.
        master: u32,
        /// The node that asked.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// What was asked.
        call: &'a Call,
        /// What was answered.
        grant: &'a Grant,
        /// The server is no longer the key's owner, so what it lends may be lent again.
        stale: bool,
        /// What it did to the key's hash.
        ran: &'a Ran,
    },
    /// A script was rehearsed: no node asked for it, and nothing in the run depends on its answer.
    Rehearsed {
        /// When, by a clock of its own.
        now: Timestamp,
        /// What was asked.
        call: &'a Call,
        /// The answer, or why it cannot be read.
        grant: Result<&'a Grant, &'a String>,
        /// What it did to the key's hash.
        ran: &'a Ran,
    },
    /// A call that a script has executed alone was executed once more, together with others in one call of the script
    /// for several keys. It ran on a copy of the state that the single call had found, and nothing in the run depends
    /// on it.
    Repeated {
        /// When, by the clock of its server.
        now: Timestamp,
        /// The key.
        key: u32,
        /// What was asked.
        call: &'a Call,
        /// The answer, or why it cannot be read.
        grant: Result<&'a Grant, &'a String>,
        /// What it did to the copy of the key's hash.
        ran: &'a Ran,
    },
    /// A failover undid the last writes of a key; what they had lent may be lent again.
    Undone {
        /// The key.
        key: u32,
        /// The time on the clock of the master that owns the key.
        store: Timestamp,
    },
    /// The store lost a key: flushed or evicted.
    Lost {
        /// The key.
        key: u32,
        /// The time on the clock of the master that owns the key.
        store: Timestamp,
    },
    /// A node sent a call (each sending counts), or did not, because a breaker was open.
    Called {
        /// The node.
        node: u32,
        /// The key.
        key: u32,
        /// What was asked.
        call: &'a Call,
        /// It left.
        sent: bool,
    },
    /// A node got the outcome of a call.
    Settled {
        /// The node.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// What was asked.
        call: &'a Call,
        /// Its outcome; `None` if that is unknown.
        grant: Option<&'a Grant>,
    },
    /// A node received another one's reports.
    Reported {
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
        /// What, as it travelled.
        frames: &'a Frames,
        /// A fault had the sender send false reports.
        lies: bool,
    },
    /// A node asks a peer for tokens.
    PeerAsked {
        /// The node.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// What for.
        ask: &'a Ask,
        /// Whom, in which incarnation, if it is still there.
        peer: Option<(u32, u64)>,
    },
    /// A node keeps a peer that has asked it waiting.
    PeerWaits {
        /// The node that was asked.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// Who asked, in which incarnation.
        peer: (u32, u64),
        /// What for.
        ask: &'a Ask,
    },
    /// A node answers a peer, and has spent the tokens that it lends.
    PeerAnswered {
        /// The node that was asked.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// Who asked, in which incarnation.
        peer: (u32, u64),
        /// What was asked for.
        ask: &'a Ask,
        /// The answer.
        answer: &'a Answer,
        /// What the node goes by that was asked.
        rule: &'a Arc<Rule>,
        /// That node leaves.
        leaves: bool,
        /// The clock of the master that owns the key, now.
        store: Timestamp,
    },
    /// An answer of a peer reaches the node that asked, once or more often.
    PeerHeard {
        /// The node that asked.
        node: u32,
        /// The node's incarnation.
        incarnation: u64,
        /// The key.
        key: u32,
        /// Who answered, in which incarnation.
        peer: (u32, u64),
        /// What was asked for.
        ask: &'a Ask,
        /// The answer.
        answer: &'a Answer,
        /// The clock of the master that owns the key, now.
        store: Timestamp,
    },
    /// A node has picked its reports for a round of gossip.
    Picked {
        /// The node.
        node: u32,
        /// What, before it travels.
        usage: &'a [Usage],
        /// A fault replaced the picked reports by false ones.
        lies: bool,
    },
    /// A fault begins.
    Begins(&'a Fault),
    /// A fault that lasts ends.
    Ends(&'a Fault),
    /// A node is up, or up again under a new incarnation.
    Joined {
        /// The node.
        node: u32,
        /// Grows over the run.
        incarnation: u64,
    },
    /// A node has been asked for more keys than one of its shards has room for.
    Crowded {
        /// The node.
        node: u32,
    },
    /// A node is gone.
    Left {
        /// The node.
        node: u32,
        /// It had time to return the tokens that it held.
        drained: bool,
    },
    /// The balance of a node, now and then.
    Audit {
        /// The node.
        node: u32,
        /// Its tokens.
        balance: Balance,
        /// Keys in its table.
        keys: u64,
        /// Checks that wait.
        waiting: u64,
    },
    /// A key is counted everywhere at once, after all has healed.
    Census {
        /// The key.
        key: u32,
        /// Tokens that nodes hold of it and may spend.
        held: u64,
        /// What the store says of its one limit, and when by its clock.
        counter: Counter,
        /// See there.
        store: Timestamp,
    },
    /// Everything has healed: the liveness phase begins.
    Calm,
    /// Time hardly advances, because events keep coming; the run is cut short.
    Stuck,
    /// The run is over.
    Over,
}

impl Seen<'_> {
    /// Its topic, if not all observers are told.
    #[must_use]
    pub fn topic(&self) -> Option<Topic> {
        match self {
            Self::Asked(_) => Some(Topic::Asked),
            Self::Audit { .. } => Some(Topic::Audit),
            Self::Reported { .. } => Some(Topic::Reported),
            Self::Picked { .. } => Some(Topic::Picked),
            Self::Answered { .. } => Some(Topic::Answered),
            Self::Executed { .. } => Some(Topic::Executed),
            Self::Called { .. } => Some(Topic::Called),
            Self::Settled { .. } => Some(Topic::Settled),
            Self::Repeated { .. } => Some(Topic::Repeated),
            _ => None,
        }
    }

    /// The key that it is about, if it is about one.
    #[must_use]
    pub fn key(&self) -> Option<u32> {
        match self {
            Self::Asked(request)
            | Self::Answered { request, .. }
            | Self::TakenBack { request, .. }
            | Self::Orphaned(request) => Some(request.key),
            Self::Executed { key, .. }
            | Self::Keeps { key, .. }
            | Self::Released { key, .. }
            | Self::Undone { key, .. }
            | Self::Lost { key, .. }
            | Self::Called { key, .. }
            | Self::Repeated { key, .. }
            | Self::Settled { key, .. }
            | Self::PeerAsked { key, .. }
            | Self::PeerWaits { key, .. }
            | Self::PeerAnswered { key, .. }
            | Self::PeerHeard { key, .. }
            | Self::Census { key, .. } => Some(*key),
            Self::Hold(..)
            | Self::Together { .. }
            | Self::Rehearsed { .. }
            | Self::Reported { .. }
            | Self::Picked { .. }
            | Self::Begins(_)
            | Self::Ends(_)
            | Self::Joined { .. }
            | Self::Left { .. }
            | Self::Crowded { .. }
            | Self::Audit { .. }
            | Self::Calm
            | Self::Stuck
            | Self::Over => None,
        }
    }
}

/// What a listener is told before the run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The plan.
    pub plan: Plan,
    /// The first rule of each policy.
    pub rules: Vec<Arc<Rule>>,
}

/// A listener to a run.
pub trait Observer {
    /// Handles an event.
    fn see(&mut self, moment: Moment, seen: &Seen<'_>);

    /// Whether it is also told of this topic, which happens often and which few observers need.
    fn minds(&self, _: Topic) -> bool {
        false
    }

    /// Whether it is not told of this topic, which happens often, too, and which few observers can do without.
    fn ignores(&self, _: Topic) -> bool {
        false
    }
}

/// Events that happen often. Most observers do not need the first five topics, and only those who
/// [mind](Observer::minds) a topic are told; the others are told to all who do not [ignore](Observer::ignores) them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// [`Seen::Asked`].
    Asked,
    /// [`Seen::Audit`].
    Audit,
    /// [`Seen::Reported`].
    Reported,
    /// [`Seen::Picked`].
    Picked,
    /// [`Seen::Repeated`].
    Repeated,
    /// [`Seen::Answered`], unless it is ignored.
    Answered,
    /// [`Seen::Executed`], unless it is ignored.
    Executed,
    /// [`Seen::Called`], unless it is ignored.
    Called,
    /// [`Seen::Settled`], unless it is ignored.
    Settled,
    /// All events about keys of concurrent limits, which only some checkers judge.
    Permits,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant, by the name that faults.md and the README give it.
    pub invariant: &'static str,
    /// The file of the checker that says so, where one does.
    pub by: &'static str,
    /// True microseconds since the start.
    pub at: u64,
    /// What was seen and what was wanted.
    pub what: String,
}

/// An observer that reports violations of invariants.
pub trait Checker: Observer + Debug {
    /// The violations so far, in order, up to some number.
    fn violations(&self) -> &[Violation];

    /// What it proves, and what it excuses.
    fn sheet(&self) -> &'static Sheet;

    /// Forgets its violations, because they are excused.
    fn overlook(&mut self) {}

    /// How much of the calm at the end it has judged.
    fn judged(&self) -> Judged {
        Judged::default()
    }
}

/// How much of the calm at the end has been judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Answers that had to come with the store.
    pub answers: u64,
    /// Windows, and stretches of what has none that all share, in which the limit had to be used.
    pub uses: u64,
}
