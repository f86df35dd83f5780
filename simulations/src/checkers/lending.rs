//! **lending**: which nodes lend on to peers, and which ask. A node lends on under the limits by which the peer spends,
//! at least what is of use and at most what was wanted, not while it leaves, and not of a key for which it asks a peer
//! itself. A node asks one peer at a time for a key, never twice under one id, and no peer that has just said that it
//! has other limits. A node that has lost the store does not use its share while a peer would lend, except for tokens
//! that are set aside for it alone. If no peer would, no check waits for a peer that has said that it has no store, and
//! one of those is asked now and then whether its store is back.
//!
//! `lease_conservation.rs` judges that tokens lent on were held, and are admitted once.

use rationd::core::ask::{Answer, Ask, Loan, Refusal};
use rationd::core::decision::{Source, Verdict};
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Ids, Life, Lives};
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Plan, What};

static OFF: Exemption = Exemption::new("runs whose nodes ask no peers", "Nobody lends anything on.");
static LEARNS: Exemption = Exemption::new(
    "limits that a node learns of while an ask waits",
    "A key goes by the old ones until it is asked for again, and what it is lent is of those, as the ask is.",
);

static SHARDS: Exemption = Exemption::new(
    "shares of nodes that have several shards",
    "Each shard knows for itself which peers would answer it.",
);
static LEAVES: Exemption = Exemption::new(
    "shares while nodes are told to leave or datagrams are lost, and until two seconds later",
    "Whoever leaves asks nobody, and a peer whose answers were lost is asked nothing for a second.",
);
static ANSWERED: Exemption = Exemption::new(
    "shares of a key within 1.5 s after the store has answered for it, or until the node has asked for it again, or once it has lost it",
    "The share goes on until all have paid for theirs, or have told the store what it has lost, and is ended by the next answer: of a key that nobody asks for meanwhile its first check is decided by the share yet.",
);

static UNHEARD: Exemption = Exemption::new(
    "whether a peer without a store is asked now and then, once an ask of it is not answered, until one is",
    "A peer that answers nothing several times is left out for a second.",
);

static MISSED: Exemption = Exemption::new(
    "what peers said of their store, while a node has not been heard for so long that it is given up, and before",
    "The fleet forgets who is given up: whoever is found again is another one, of which nothing is known.",
);

static DRY: Exemption = Exemption::new(
    "a peer that had nothing of a key to lend, of what is set aside for it, until it said that it may have more; and all, where eight had nothing",
    "It may lend of another key.",
);

static OWN: Exemption = Exemption::new(
    "checks that are admitted on what is set aside of a window",
    "Nobody else is lent that, so a node admits it before it asks a peer.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "lending.rs",
    invariants: &["lending"],
    proves: "A node lends on under the limits by which the peer spends, as much as is of use and no more than was wanted, not when it leaves, and not of a key for which it asks a peer itself, nor does it let a peer wait for that; it asks one peer at a time for a key, never twice under one id, and nobody who has just said that it goes by other limits; it does not go by its share at once while a peer answers asks under the same limits, nor after waiting for one that has said that it has no store, either, and asks those now and then.",
    judges: "All algorithms, several limits.",
    exemptions: &[&OFF, &LEARNS, &SHARDS, &LEAVES, &ANSWERED, &UNHEARD, &MISSED, &DRY, &OWN],
    mutant: Some("lends-under-other-limits"),
};

/// See `LEAVES`.
const LOST_FOR: u64 = 2_000_000;

/// Clocks of nodes differ by less than one part in this many.
const DRIFT_PART: u64 = 2_000;

/// How many waiting asks are remembered of a key at a node.
const WAITING: usize = 64;

/// How long a peer with other limits is not asked for the same again.
const LEFT_OUT: u64 = 1_000_000;

/// A peer that answered an ask less than this long ago would answer another.
const OPEN: u64 = 50_000;

/// How long it is remembered of a peer that it said that it has no store; and how long after that it is to be asked
/// again, unless another one was within the last of these times.
const WITHOUT: u64 = 3_000_000;
const TRIED_AFTER: u64 = 1_200_000;
const BETWEEN_TRIALS: u64 = 200_000;

/// The size of a fleet for which the last time above holds. In larger fleets it is longer, in proportion to the pause
/// between two trials.
const OWNERS: u32 = 64;

/// If this many peers have nothing of a key, none is asked.
const MANY: usize = 8;

/// How long a check may wait for peers, which are asked one after the other.
const BUSY: u64 = 200_000;

/// How long a share goes on after the store has answered.
const PAID: u64 = 1_500_000;

/// The checker.
#[derive(Debug)]
pub(super) struct Lending {
    is_on: bool,
    asked: Ids,
    /// The ask that a node waits for: its id, and until when in true time at least.
    open: Map<(Life, u32), (u64, u64)>,
    /// By node and key: the peer that last said that it has other limits, the rule that was asked about, and until when
    /// that is believed.
    others: Map<(Life, u32), (Life, u64, u64)>,
    /// By node, peer and rule, for all keys: until when the node asks that peer for nothing under that rule.
    other_rules: Map<(Life, Life, u64), u64>,
    /// The asks that each node lets wait, by key.
    waiting: Map<(Life, u32), Vec<u64>>,
    /// Whether shares are judged.
    judges_shares: bool,
    /// The longest time between two trials of peers without a store.
    between_trials: u64,
    leaves_until: u64,
    /// Until when the network may lose datagrams; `leaves_until` is the same for nodes that leave.
    loses_until: u64,
    silence: Silence,
    lives: Lives,
    /// By node: the peers that answered its last ask, the fingerprint of the limits in it, and when.
    answers: Map<Life, Vec<(Life, u64, u64)>>,
    /// When a node last asked a peer for a key, or let a peer wait for it; and when the store last answered the node
    /// about it.
    busy: Map<(Life, u32), u64>,
    answered: Map<(Life, u32), u64>,
    /// Nodes and keys for which the store has answered and was not called since.
    quiet: Set<(Life, u32)>,
    lost: Set<u32>,
    /// By node: the peers whose last answer was that they have no store, the fingerprint of the limits, and when.
    without: Map<Life, Vec<(Life, u64, u64)>>,
    /// When a node last used its share of a key, and whether the store was away, as a share goes on for a while after
    /// the store has answered. `in_vain`: when it then last asked a peer without a store. `tried`: when a node last
    /// tried one.
    by_share: Map<(Life, u32), (u64, bool)>,
    in_vain: Map<(Life, u32), u64>,
    tried: Map<Life, u64>,
    /// By node: the peers that had nothing left to lend of what is set aside for them; they may be among its trials,
    /// too.
    dry: Map<Life, Vec<Life>>,
    /// The same by key, and until when they said so.
    dry_of: Map<(Life, u32), Vec<(Life, u64)>>,
    /// Since when a node has used its share without trying any of the peers without a store.
    untried: Map<Life, u64>,
    /// By node: the peers that have not answered its last ask.
    unheard: Map<Life, Vec<Life>>,
    found: Found,
}

impl Lending {
    pub(super) fn new(setting: &Setting) -> Self {
        let is_on = !OFF.when(!setting.plan.daemon.owners);
        Self {
            is_on,
            asked: Ids::default(),
            open: Map::default(),
            others: Map::default(),
            other_rules: Map::default(),
            waiting: Map::default(),
            judges_shares: is_on && !SHARDS.when(setting.plan.daemon.shards > 1),
            between_trials: BETWEEN_TRIALS * u64::from(most_nodes(&setting.plan).div_ceil(OWNERS)),
            leaves_until: 0,
            loses_until: if setting.plan.network.loss > 0 { u64::MAX } else { 0 },
            silence: Silence::new(&setting.plan),
            lives: Lives::default(),
            answers: Map::default(),
            busy: Map::default(),
            answered: Map::default(),
            quiet: Set::default(),
            lost: Set::default(),
            without: Map::default(),
            by_share: Map::default(),
            in_vain: Map::default(),
            tried: Map::default(),
            dry: Map::default(),
            dry_of: Map::default(),
            untried: Map::default(),
            unheard: Map::default(),
            found: Found::default(),
        }
    }

    /// Judges a check that was decided by the share at once: a peer that has just answered an ask would have answered
    /// another.
    fn goes_by_its_share(&mut self, moment: Moment, request: &Request, rule: &Rule) {
        let place = (self.lives.of(request.node), request.key);
        let within = |at: Option<&u64>, span: u64| at.is_some_and(|at| moment.at < at + span);
        let is_answered = within(self.answered.get(&place), PAID) || self.quiet.contains(&place);
        self.by_share.insert(place, (moment.at, !is_answered));
        let is_excused = ANSWERED.when(is_answered || self.lost.contains(&request.key));
        let is_lossy = LEAVES.when(moment.at < self.leaves_until.max(self.loses_until));
        if is_excused || is_lossy || within(self.busy.get(&place), BUSY) {
            return;
        }
        let of_rule = rule.fingerprint();
        let dry = self.dry_of.get(&place).map_or(&[][..], Vec::as_slice);
        let has_none =
            |peer: Life| dry.iter().any(|(of, until)| (*of == peer || dry.len() >= MANY) && moment.at < *until);
        // It may have lent something before it learned of other limits, with its answers coming out of order.
        let is_left_out = |peer: Life| within(self.other_rules.get(&(place.0, peer, of_rule)), 0);
        let is_open = |(peer, of, at): &&(Life, u64, u64)| {
            *of == of_rule && moment.at < at + OPEN && !is_left_out(*peer) && !DRY.when(has_none(*peer))
        };
        let open = self.answers.get(&place.0).and_then(|peers| peers.iter().find(is_open)).copied();
        if let Some((peer, _, at)) = open {
            self.found.add("lending", moment, || {
                format!("{request:?} was decided by the share, and {peer:?} has answered an ask at {at}")
            });
            return;
        }
        self.tries(moment, request, of_rule);
    }

    /// Judges a check that was decided by the share at once: one of the peers that had no store a while ago has to be
    /// asked, lately or now.
    fn tries(&mut self, moment: Moment, request: &Request, rule: u64) {
        if MISSED.when(self.silence.has_given_up(moment.at)) {
            return;
        }
        let life = self.lives.of(request.node);
        let peers = self.without.get(&life).map_or(&[][..], Vec::as_slice);
        let may_be_back = |at: u64| (at + TRIED_AFTER..at + WITHOUT).contains(&moment.at);
        let has_tried = self.tried.get(&life).is_some_and(|at| moment.at < at + self.between_trials);
        let unheard = self.unheard.get(&life).map_or(&[][..], Vec::as_slice);
        let is_open = |(peer, of, at): &&(Life, u64, u64)| {
            *of == rule && may_be_back(*at) && !UNHEARD.when(unheard.contains(peer))
        };
        let Some((peer, _, at)) = peers.iter().find(is_open).copied().filter(|_| !has_tried) else { return };
        // The ask that this check causes is seen after the check's answer, so the judgement waits for the next check.
        let since = *self.untried.entry(life).or_insert(moment.at);
        if since < moment.at {
            self.found.add("lending", moment, || {
                format!(
                    "{request:?} was decided by the share, and {peer:?}, without a store at {at}, was not asked since"
                )
            });
        }
    }

    /// Judges a check that was decided by the share after it had waited.
    fn waits_in_vain(&mut self, moment: Moment, request: &Request) {
        let place = (self.lives.of(request.node), request.key);
        let asked = self.in_vain.get(&place).filter(|at| (request.asked..moment.at).contains(*at));
        if let Some(at) = asked {
            self.found.add("lending", moment, || {
                format!("{request:?} waited for a peer asked at {at}, which had said that it has no store")
            });
        }
    }

    /// Notes whether a peer has said that it has no store.
    fn note_without(&mut self, life: Life, rule: u64, peer: Life, said: Option<u64>) {
        let peers = self.without.entry(life).or_default();
        peers.retain(|(other, _, _)| *other != peer);
        peers.extend(said.map(|at| (peer, rule, at)));
    }

    /// Notes whether a peer has answered a node's last ask.
    fn note_open(&mut self, life: Life, rule: u64, peer: Life, answered: Option<u64>) {
        let peers = self.answers.entry(life).or_default();
        peers.retain(|(other, _, _)| *other != peer);
        peers.extend(answered.map(|at| (peer, rule, at)));
    }

    fn asks(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask) {
        if !self.asked.is_first(life, ask.id) {
            self.found.add("lending", moment, || format!("key {key}: {life:?} asks again under the id of {ask:?}"));
        }
        let patience = ask.awaited.0;
        let open = (ask.id, moment.at + patience - patience.div_ceil(DRIFT_PART));
        if let Some((id, _)) = self.open.insert((life, key), open).filter(|(_, until)| moment.at < *until) {
            self.found.add("lending", moment, || format!("key {key}: {life:?} asks for {ask:?} and waits for {id}"));
        }
    }

    fn asks_who_has_none(&mut self, moment: Moment, life: Life, key: u32, peer: Life) {
        let peers = self.without.get(&life).map_or(&[][..], Vec::as_slice);
        if let Some((_, _, at)) = peers.iter().find(|(other, _, _)| *other == peer) {
            let by_share = self.by_share.get(&(life, key));
            if moment.at < at + WITHOUT && by_share.is_some_and(|(at, is_away)| *is_away && moment.at < at + BUSY) {
                self.in_vain.insert((life, key), moment.at);
            }
            // In a large fleet a round of trials takes longer than it is remembered of a peer that it has no store, so
            // this counts as a trial in any case.
            self.tried.insert(life, moment.at);
        }
        // An ask beside a check that the share has just answered is always a trial. Whether the peer has no store may
        // be known to the node alone, if its last answer came so late that the node may have ignored it.
        let is_trial = self.by_share.get(&(life, key)).is_some_and(|(at, _)| *at == moment.at);
        if is_trial || self.dry.get(&life).is_some_and(|dry| dry.contains(&peer)) {
            self.tried.insert(life, moment.at);
        }
        self.untried.remove(&life);
        let unheard = self.unheard.entry(life).or_default();
        if !unheard.contains(&peer) {
            unheard.push(peer);
        }
    }

    fn asks_in_vain(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, peer: Life) {
        let other = self
            .others
            .get(&(life, key))
            .filter(|(other, rule, until)| (*other, *rule) == (peer, ask.terms.rule) && moment.at < *until);
        if other.is_some() {
            self.found.add("lending", moment, || {
                format!("key {key}: {life:?} asks {peer:?} for {ask:?}, which has said that it goes by other limits")
            });
        }
    }

    fn hears(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, (peer, answer): (Life, &Answer)) {
        let Some((_, until)) = self.open.get(&(life, key)).filter(|(id, _)| *id == ask.id).copied() else { return };
        self.open.remove(&(life, key));
        if let Some(unheard) = self.unheard.get_mut(&life) {
            unheard.retain(|of| *of != peer);
        }
        let has_none = *answer == Err(Refusal::NoStore) && moment.at < until;
        self.note_without(life, ask.terms.rule, peer, has_none.then_some(moment.at));
        let dry_of = self.dry_of.entry((life, key)).or_default();
        dry_of.retain(|(of, until)| *of != peer && moment.at < *until);
        if let Some(loan) = answer.as_ref().ok().filter(|loan| loan.aside && loan.tokens < ask.terms.want) {
            let wait = loan.wait.0.max(ask.rule.limits[0].period.0 / 8);
            dry_of.push((peer, moment.at + wait + wait.div_ceil(DRIFT_PART)));
        }
        let dry = self.dry.entry(life).or_default();
        dry.retain(|of| *of != peer);
        dry.extend(answer.as_ref().is_ok_and(|loan| loan.aside && loan.tokens == 0).then_some(peer));
        // A peer that lends tokens set aside for it may have none of another key, or no more of this one.
        let is_aside = answer.as_ref().is_ok_and(|loan| loan.aside);
        if is_aside {
            self.note_open(life, ask.terms.rule, peer, None);
        } else if answer.is_ok() && moment.at < until {
            self.note_open(life, ask.terms.rule, peer, Some(moment.at));
        }
        // A peer may lend of one key and say of another that it has no store; then it is not asked for a while.
        if answer.as_ref().is_err_and(|refusal| refusal.lasts()) {
            self.note_open(life, ask.terms.rule, peer, None);
        }
        if *answer == Err(Refusal::OtherRule) && moment.at < until {
            let until = moment.at + LEFT_OUT - LEFT_OUT.div_ceil(DRIFT_PART);
            self.others.insert((life, key), (peer, ask.terms.rule, until));
            self.other_rules.insert((life, peer, ask.terms.rule), until);
        }
    }

    /// Judges an ask that has to wait: two nodes that asked each other would wait for each other until both give up.
    fn waits(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask) {
        if self.open.get(&(life, key)).is_some_and(|(_, until)| moment.at < *until) {
            self.found
                .add("lending", moment, || format!("key {key}: {life:?} asks a peer itself and lets {ask:?} wait"));
        }
        let waiting = self.waiting.entry((life, key)).or_default();
        waiting.push(ask.id);
        if waiting.len() > WAITING {
            waiting.remove(0);
        }
    }

    /// Whether the node had let the ask wait.
    fn has_waited(&mut self, life: Life, key: u32, ask: &Ask) -> bool {
        // An ask that came twice waits twice, and is answered twice.
        let waiting = self.waiting.entry((life, key)).or_default();
        let place = waiting.iter().position(|id| *id == ask.id);
        place.map(|place| waiting.remove(place)).is_some()
    }

    fn lends(&mut self, moment: Moment, life: Life, (key, leaves): (u32, bool), ask: &Ask, rule: &Rule, loan: &Loan) {
        let terms = ask.terms;
        let has_waited = self.has_waited(life, key, ask);
        let is_asking = self.open.get(&(life, key)).is_some_and(|(_, until)| moment.at < *until);
        let why = match () {
            () if rule.limits != ask.rule.limits && !LEARNS.when(has_waited) => "goes by other limits",
            () if leaves => "leaves",
            // Tokens set aside for a node were not lent to it by a peer, so no circle of waiting arises.
            () if is_asking && !loan.aside => "asks a peer itself",
            () if loan.aside && !(terms.aside && rule.is_entitled_window()) => {
                "lends of what is set aside who was not asked for that"
            }
            () if !(terms.least..=terms.want).contains(&loan.tokens) => "lends what is not wanted",
            () => return,
        };
        self.found.add("lending", moment, || format!("key {key}: {life:?} {why} and lends {loan:?} on for {ask:?}"));
    }
}

impl Observer for Lending {
    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on || topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.lives.see(seen);
        if MISSED.when(self.silence.gives_up(moment.at, seen)) {
            self.without.clear();
        }
        match seen {
            Seen::PeerAsked { node, incarnation, key, ask, peer } => {
                self.asks(moment, (*node, *incarnation), *key, ask);
                self.busy.insert(((*node, *incarnation), *key), moment.at);
                if let Some(peer) = peer {
                    self.note_open((*node, *incarnation), ask.terms.rule, *peer, None);
                    self.asks_in_vain(moment, (*node, *incarnation), *key, ask, *peer);
                    self.asks_who_has_none(moment, (*node, *incarnation), *key, *peer);
                }
            }
            Seen::PeerWaits { node, incarnation, key, ask, .. } => {
                self.busy.insert(((*node, *incarnation), *key), moment.at);
                self.waits(moment, (*node, *incarnation), *key, ask);
            }
            Seen::Answered { request, rule, decision, parked: false, .. }
                if decision.source == Source::Share
                    && request.kind == Kind::Check
                    && self.judges_shares
                    && !OWN.when(rule.is_entitled_window() && decision.verdict == Verdict::Allow) =>
            {
                self.goes_by_its_share(moment, request, rule);
            }
            Seen::Answered { request, decision, parked: true, .. }
                if decision.source == Source::Share && request.kind == Kind::Check && self.judges_shares =>
            {
                self.waits_in_vain(moment, request);
            }
            Seen::Called { node, key, .. } => _ = self.quiet.remove(&(self.lives.of(*node), *key)),
            Seen::Settled { node, incarnation, key, grant: Some(_), .. } => {
                self.answered.insert(((*node, *incarnation), *key), moment.at);
                self.by_share.remove(&((*node, *incarnation), *key));
                self.quiet.insert(((*node, *incarnation), *key));
            }
            Seen::Lost { key, .. } | Seen::Undone { key, .. } => _ = self.lost.insert(*key),
            // The new process has said nothing about its store.
            Seen::Joined { node, .. } => {
                self.without.values_mut().for_each(|peers| peers.retain(|((peer, _), _, _)| peer != node));
            }
            Seen::Calm => self.loses_until = self.loses_until.min(moment.at + LOST_FOR),
            Seen::Begins(fault) if leaves(&fault.what) => self.leaves_until = u64::MAX,
            Seen::Ends(fault) if leaves(&fault.what) => self.leaves_until = moment.at + LOST_FOR,
            Seen::PeerAnswered { node, incarnation, key, ask, answer: Ok(loan), rule, leaves, .. }
                if loan.tokens > 0 =>
            {
                self.lends(moment, (*node, *incarnation), (*key, *leaves), ask, rule, loan);
            }
            Seen::PeerHeard { node, incarnation, key, ask, peer, answer, .. } => {
                self.hears(moment, (*node, *incarnation), *key, ask, (*peer, answer));
            }
            _ => {}
        }
    }
}

/// Since when some nodes have not been heard by others.
#[derive(Clone, Copy, Debug)]
struct Silence {
    /// How long a node is not heard until it is given up.
    dead: u64,
    began: u64,
    /// How many faults under way keep nodes from being heard.
    reasons: u32,
}

impl Silence {
    fn new(plan: &Plan) -> Self {
        Self { dead: plan.gossip.map_or(u64::MAX, |gossip| gossip.dead.0), began: 0, reasons: 0 }
    }

    /// Whether nodes that had been given up may be heard again.
    fn gives_up(&mut self, at: u64, seen: &Seen<'_>) -> bool {
        match seen {
            Seen::Begins(fault) if silences(&fault.what) => {
                self.began = if self.reasons == 0 { at } else { self.began };
                self.reasons += 1;
                false
            }
            Seen::Ends(fault) if silences(&fault.what) => {
                let is_heard_again = self.has_given_up(at);
                self.reasons = self.reasons.saturating_sub(1);
                is_heard_again
            }
            _ => false,
        }
    }

    /// Whether nodes that are not heard may have been given up.
    fn has_given_up(&self, at: u64) -> bool {
        self.reasons > 0 && at >= self.began.saturating_add(self.dead)
    }
}

/// Whether live nodes are not heard during the fault.
fn silences(what: &What) -> bool {
    matches!(what, What::Part { .. } | What::Freeze { .. })
}

/// The largest number of nodes at a time.
fn most_nodes(plan: &Plan) -> u32 {
    let scaled = plan.faults.iter().map(|fault| if let What::Scale { nodes } = fault.what { nodes } else { 0 });
    scaled.max().unwrap_or(0).max(plan.nodes)
}

/// Whether nodes leave by the fault, or messages between nodes are lost.
fn leaves(what: &What) -> bool {
    matches!(
        what,
        What::Restart { .. } | What::Roll { .. } | What::Scale { .. } | What::Crash { .. } | What::Noise { .. }
    )
}

impl Checker for Lending {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, loan, peer_ask};
    use crate::plan::{Fault, Gossip};
    use crate::span::Span;

    fn checker(history: &History) -> Lending {
        let mut setting = history.setting();
        setting.plan.daemon.owners = true;
        Lending::new(&setting)
    }

    /// Node 1 asks for three tokens, two at least; node 0 lends `tokens` under `limit`.
    fn violations(limit: &str, tokens: u64, leaves: bool, asks_itself: bool) -> usize {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        if asks_itself {
            let ask = peer_ask(9, 1, 1);
            history.see(&mut checker, 1, &Seen::PeerAsked { node: 0, incarnation: 0, key: 0, ask: &ask, peer: None });
        }
        let ask = peer_ask(1, 3, 2);
        history.see(&mut checker, 2, &Seen::PeerAsked { node: 1, incarnation: 0, key: 0, ask: &ask, peer: None });
        history.lent_on(&mut checker, 3, limit, tokens, leaves);
        checker.violations().len()
    }

    #[test]
    fn who_may_not_lend_on_is_seen() {
        assert_eq!(violations("10/1s fixed", 2, false, false), 0);
        assert_eq!(violations("11/1s fixed", 2, false, false), 1);
        assert_eq!(violations("10/1s fixed", 2, true, false), 1);
        assert_eq!(violations("10/1s fixed", 2, false, true), 1);
        assert_eq!(violations("10/1s fixed", 1, false, false), 1);
        assert_eq!(violations("10/1s fixed", 4, false, false), 1);
        assert_eq!(violations("11/1s fixed", 0, true, true), 0);
    }

    #[test]
    fn who_asks_twice_is_seen() {
        for (id, at, seen) in [(2, 100_000, 0), (1, 100_000, 1), (2, 3, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            for (id, at) in [(1, 2), (id, at)] {
                let ask = peer_ask(id, 1, 1);
                history.see(
                    &mut checker,
                    at,
                    &Seen::PeerAsked { node: 1, incarnation: 0, key: 0, ask: &ask, peer: None },
                );
            }
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_beside_a_peer_that_answers_is_seen() {
        // When the peer was asked and answered, when the store last answered, and when the share decides.
        for (asked, answered, store, at, seen) in [
            (400_000, true, 1, 440_000, 0),
            (1_600_000, true, 1, 1_640_000, 1),
            (1_600_000, false, 1, 1_640_000, 0),
            (1_600_000, true, 300_000, 1_640_000, 0),
            (1_600_000, true, 1, 1_660_000, 0),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            history.settled(&mut checker, store, 1, 1);
            history.called(&mut checker, store + 10, 2, 1);
            let (node, incarnation, key, peer, ask) = (0, 0, 7, (1, 1), &peer_ask(9, 1, 1));
            history.see(&mut checker, asked, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            if answered {
                let (answer, store) = (&loan(1), Timestamp(0));
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
                history.see(&mut checker, asked + 1_000, &heard);
            }
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The same when some of a thousand datagrams are lost until all has healed, if it has, and how long before.
    #[test]
    fn a_share_beside_a_peer_is_seen_two_seconds_after_no_datagrams_are_lost_any_more() {
        for (loss, healed, seen) in [(0, None, 1), (1, None, 0), (1, Some(LOST_FOR), 1), (1, Some(LOST_FOR - 1), 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            (setting.plan.daemon.owners, setting.plan.network.loss) = (true, loss);
            let mut checker = Lending::new(&setting);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            let at = 4_000_000;
            if let Some(before) = healed {
                history.see(&mut checker, at - before, &Seen::Calm);
            }
            let (node, incarnation, key, peer, ask) = (0, 0, 7, (1, 1), &peer_ask(9, 1, 1));
            history.see(&mut checker, at - 40_000, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let (answer, store) = (&loan(1), Timestamp(0));
            let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
            history.see(&mut checker, at - 39_000, &heard);
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{loss} {healed:?}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_that_nobody_asked_for_since_the_store_answered_goes_on() {
        for (asks, seen) in [(false, 0), (true, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            history.settled(&mut checker, 1, 1, 1);
            if asks {
                history.called(&mut checker, 1_500_000, 2, 1);
            }
            let (node, incarnation, key, peer, ask) = (0, 0, 7, (1, 1), &peer_ask(9, 1, 1));
            history.see(&mut checker, 1_600_000, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let (answer, store) = (&loan(1), Timestamp(0));
            let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
            history.see(&mut checker, 1_601_000, &heard);
            history.check(&mut checker, 1_640_000, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_beside_a_peer_that_has_said_since_that_it_has_no_store_is_not() {
        for (said, seen) in [(Err(Refusal::NoStore), 0), (Err(Refusal::Busy), 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            let (node, incarnation, peer, store) = (0, 0, (1, 1), Timestamp(0));
            let of_two = [(7, peer_ask(9, 1, 1), loan(1)), (8, peer_ask(10, 1, 1), said)];
            for (key, ask, _) in &of_two {
                let asked = Seen::PeerAsked { node, incarnation, key: *key, ask, peer: Some(peer) };
                history.see(&mut checker, 1_600_000, &asked);
            }
            for (key, ask, answer) in &of_two {
                let heard = Seen::PeerHeard { node, incarnation, key: *key, peer, ask, answer, store };
                history.see(&mut checker, 1_601_000, &heard);
            }
            history.check(&mut checker, 1_640_000, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn who_asks_those_who_go_by_other_limits_again_at_once_is_seen() {
        for (again, at, seen) in [((0, 0), 500_000, 1), ((0, 0), 1_100_000, 0), ((0, 1), 500_000, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let (incarnation, key, store) = (0, 0, Timestamp(0));
            let ask = peer_ask(1, 1, 1);
            let peer = Some((0, 0));
            history.see(&mut checker, 2, &Seen::PeerAsked { node: 1, incarnation, key, ask: &ask, peer });
            let (peer, answer) = ((0, 0), Err(Refusal::OtherRule));
            let heard = Seen::PeerHeard { node: 1, incarnation, key, peer, ask: &ask, answer: &answer, store };
            history.see(&mut checker, 3, &heard);
            let ask = peer_ask(2, 1, 1);
            history.see(&mut checker, at, &Seen::PeerAsked { node: 1, incarnation, key, ask: &ask, peer: Some(again) });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// A node without the store has asked a peer, which said that it has none either. Then, for the same key: it uses
    /// its share at once at the times `shares`, or asks the peer again, and a check waits until some time after that.
    fn of_a_peer_without_a_store(said: Refusal, shares: &[u64], asks: Option<(u64, Option<u64>)>) -> usize {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
        let (node, incarnation, key, peer, store) = (0, 0, 0, (1, 1), Timestamp(0));
        let first = &peer_ask(9, 1, 1);
        history.see(&mut checker, 1_600_000, &Seen::PeerAsked { node, incarnation, key, ask: first, peer: Some(peer) });
        let heard = Seen::PeerHeard { node, incarnation, key, peer, ask: first, answer: &Err(said), store };
        history.see(&mut checker, 1_601_000, &heard);
        let mut asked = false;
        for at in shares {
            if let Some((ask_at, waits)) = asks.filter(|(ask_at, _)| !asked && ask_at <= at) {
                asked = true;
                let ask = &peer_ask(10, 1, 1);
                history.see(&mut checker, ask_at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer: &Err(said), store };
                history.see(&mut checker, ask_at + 500, &heard);
                if let Some(waits) = waits {
                    let request = history.ask(&mut checker, ask_at);
                    history.answer(&mut checker, ask_at + waits, &request, Source::Share, false);
                }
            }
            history.check(&mut checker, *at, 1, Source::Share, false);
        }
        checker.violations().len()
    }

    /// A peer has said that it has no store, was not heard for some time, and is asked again by a check that waits for
    /// it.
    #[test]
    fn whoever_was_given_up_and_is_back_may_have_a_store() {
        for (lasts, seen) in [(6_000_000, 0), (5_000_000, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            (setting.plan.daemon.owners, setting.plan.gossip) = (true, Some(Gossip::default()));
            let mut checker = Lending::new(&setting);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            let (node, incarnation, key, peer, store) = (0, 0, 0, (1, 1), Timestamp(0));
            let what = What::Part { nodes: vec![0], one_way: false };
            let fault = Fault { at: Span(0), lasts: Span(lasts), what };
            history.see(&mut checker, 0, &Seen::Begins(&fault));
            for (id, at) in [(9, lasts - 1_000_000), (10, lasts + 100_000)] {
                if id == 10 {
                    history.see(&mut checker, lasts, &Seen::Ends(&fault));
                }
                history.check(&mut checker, at, 1, Source::Share, false);
                let ask = &peer_ask(id, 1, 1);
                history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
                let answer = &Err(Refusal::NoStore);
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
                history.see(&mut checker, at + 500, &heard);
            }
            let request = history.ask(&mut checker, lasts + 100_000);
            history.answer(&mut checker, lasts + 100_600, &request, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{lasts}: {:?}", checker.violations());
        }
    }

    /// A peer said at 1.6 s that it has no store and was not asked since; something happens besides.
    #[test]
    fn whoever_was_given_up_or_has_begun_anew_need_not_be_asked_again() {
        for (joins, dead, seen) in [(None, 2, 1), (None, 1, 0), (Some(2), 2, 1), (Some(1), 2, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.daemon.owners = true;
            setting.plan.gossip = Some(Gossip { dead: Span(dead * 1_000_000), ..Gossip::default() });
            let mut checker = Lending::new(&setting);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            let (node, incarnation, key, peer, store) = (0, 0, 0, (1, 1), Timestamp(0));
            let ask = &peer_ask(9, 1, 1);
            history.see(&mut checker, 1_600_000, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let answer = &Err(Refusal::NoStore);
            let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
            history.see(&mut checker, 1_601_000, &heard);
            let what = What::Part { nodes: vec![0], one_way: false };
            let fault = Fault { at: Span(1_700_000), lasts: Span(9_000_000), what };
            history.see(&mut checker, 1_700_000, &Seen::Begins(&fault));
            if let Some(node) = joins {
                history.see(&mut checker, 2_000_000, &Seen::Joined { node, incarnation: 9 });
            }
            for at in [2_850_000, 2_950_000] {
                history.check(&mut checker, at, 1, Source::Share, false);
            }
            assert_eq!(checker.violations().len(), seen, "{joins:?} {dead}: {:?}", checker.violations());
        }
    }

    /// A check waits for the owner, which had no store a second ago. The node's share had been ended by an answer
    /// before, or not.
    #[test]
    fn a_node_whose_store_is_back_may_wait_for_an_owner_that_had_none() {
        for (is_back, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            let (node, incarnation, key, peer, store) = (0, 0, 0, (1, 1), Timestamp(0));
            for (id, at) in [(1, 1_600_000), (2, 2_650_000)] {
                let (ask, answer) = (&peer_ask(id, 1, 1), &Err(Refusal::NoStore));
                if id == 2 {
                    if is_back {
                        history.lent(&mut checker, 2_400_000, 0, 1, 1);
                    }
                    history.check(&mut checker, 2_550_000, 1, Source::Share, false);
                }
                history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
                history.see(&mut checker, at + 500, &heard);
            }
            let request = history.ask(&mut checker, 2_650_000);
            history.answer(&mut checker, 2_650_600, &request, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{is_back}: {:?}", checker.violations());
        }
    }

    /// A peer lends, and says of another key that it has other limits: one answer has overtaken the other.
    #[test]
    fn a_peer_that_has_learned_of_other_limits_would_lend_no_more() {
        for (other, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let (node, incarnation, peer, store) = (0, 0, (1, 1), Timestamp(0));
            for (id, at) in [(1, 2_000_000), (2, 2_000_100)] {
                let (ask, key) = (&peer_ask(id, 1, 1), id as u32);
                history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            }
            let answers = [(2, Err(Refusal::OtherRule)), (1, loan(1))];
            for (id, answer) in answers.iter().skip(usize::from(!other)) {
                let (ask, key) = (&peer_ask(*id, 1, 1), *id as u32);
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
                history.see(&mut checker, 2_002_000 - id, &heard);
            }
            history.check(&mut checker, 2_020_000, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{other}: {:?}", checker.violations());
        }
    }

    /// One peer has said that it has no store, and another has said so again, but too late. The latter is tried beside
    /// a check that the share has answered, or asked for another key.
    #[test]
    fn a_node_that_tries_a_peer_of_which_only_it_knows_that_it_has_no_store_has_tried_one() {
        for (tried, seen) in [(0, 0), (7, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let (node, incarnation, key, store) = (0, 0, 0, Timestamp(0));
            for (id, peer, late) in [(1, (1, 1), 0), (2, (2, 1), 0), (3, (2, 1), 500_000)] {
                let (ask, at, answer) = (&peer_ask(id, 1, 1), 1_600_000 + 10_000 * id, &Err(Refusal::NoStore));
                history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
                let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store };
                history.see(&mut checker, at + 500 + late, &heard);
            }
            for at in [2_900_000, 2_950_000, 3_000_000] {
                history.check(&mut checker, at, 1, Source::Share, false);
                if at == 2_900_000 {
                    let (ask, peer) = (&peer_ask(9, 1, 1), Some((2, 1)));
                    history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key: tried, ask, peer });
                }
            }
            assert_eq!(checker.violations().len(), seen, "{tried}: {:?}", checker.violations());
        }
    }

    #[test]
    fn an_ask_that_came_twice_may_wait_for_other_limits_twice() {
        for (waits, seen) in [(2, 0), (1, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let (node, incarnation, key, peer, ask) = (0, 0, 0, (1, 0), &peer_ask(1, 3, 2));
            for _ in 0..waits {
                history.see(&mut checker, 1, &Seen::PeerWaits { node, incarnation, key, peer, ask });
            }
            (2..4).for_each(|at| history.lent_on(&mut checker, at, "11/1s fixed", 2, false));
            assert_eq!(checker.violations().len(), seen, "{waits}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_peer_without_a_store_is_asked_again_and_no_check_waits_for_it() {
        let none = Refusal::NoStore;
        assert_eq!(of_a_peer_without_a_store(none, &[2_000_000, 2_700_000, 3_000_000], None), 0, "not for a while");
        assert_eq!(of_a_peer_without_a_store(none, &[2_000_000, 2_900_000, 3_000_000], None), 1);
        assert_eq!(of_a_peer_without_a_store(Refusal::Busy, &[2_000_000, 2_900_000, 3_000_000], None), 0);
        let tried = Some((2_900_000, None));
        assert_eq!(of_a_peer_without_a_store(none, &[2_850_000, 2_900_000, 3_000_000], tried), 0);
        let waits = Some((2_900_000, Some(600)));
        assert_eq!(of_a_peer_without_a_store(none, &[2_850_000, 2_910_000, 3_000_000], waits), 1);
        assert_eq!(
            of_a_peer_without_a_store(none, &[2_300_000, 2_910_000, 3_000_000], waits),
            0,
            "it may ask the owner"
        );
    }
}
