//! Hand-made histories for the checkers' tests: one key, one node, one limit.

use std::sync::Arc;

use rationd::core::ask::{Answer, Ask, Loan, Terms};
use rationd::core::call::{Acquire, Call, Claim, Counter, Grant, Known, OPEN, Op, Voided, Window};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::{Limit, MAX_LIMITS};
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::excerpt::Excerpt;

use crate::lua::Scripts;
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Ran, Request, Seen, Setting, Topic};
use crate::plan::{Fault, Plan, Policy, What};
use crate::span::Span;
use crate::swarm;
use crate::world::{self, Watch, World};

pub(super) const SECOND: u64 = 1_000_000;

/// A whole second of the store's clock.
pub(super) const START: u64 = 1_800_000_000_000_000;

/// An observer that ignores everything.
struct Deaf;

impl Observer for Deaf {
    fn see(&mut self, _: Moment, _: &Seen<'_>) {}
}

/// Makes events for a checker, one after another.
pub(super) struct History {
    rule: Arc<Rule>,
    limit: String,
    id: u64,
    pub(super) used: u64,
    /// What a node claims to know of a window, which window that is, and for how many limits it says so.
    pub(super) known: u64,
    pub(super) known_at: u64,
    pub(super) known_limits: usize,
    /// The number of nodes that the store counts.
    pub(super) nodes: u32,
    /// The figures in a decision.
    pub(super) remaining: u64,
    /// What answers show of the previous or the next window.
    pub(super) prev: u64,
    /// The key's epoch, and how much later than usual its window ends.
    pub(super) epoch: u64,
    pub(super) opened: u64,
    /// The epoch that a node names.
    pub(super) asks_under: u64,
    /// Whether calls are executed by a server that is not the owner.
    pub(super) stale: bool,
    /// The node that asks the store.
    pub(super) node: u32,
    /// Whether a decision says that nothing is used.
    pub(super) whole_at_once: bool,
    /// Whether a replica confirms grants.
    pub(super) confirmed: bool,
    /// What the store sets aside for the node, and what the node claims.
    pub(super) entitled: u64,
    pub(super) believes: Option<u64>,
    /// What a script finds in the key's hash, and how many tokens of a void order were for waiters.
    pub(super) found: Option<Excerpt>,
    pub(super) needed: u64,
}

impl History {
    pub(super) fn new(limit: &str) -> Self {
        let rule = Arc::new(Rule::of("p0", &[Limit::parse(limit).expect(limit)]));
        Self {
            rule,
            limit: limit.into(),
            id: 0,
            used: 0,
            known: 0,
            known_at: START + SECOND,
            known_limits: 1,
            nodes: 1,
            remaining: 0,
            prev: 0,
            epoch: 1,
            opened: 0,
            asks_under: 1,
            stale: false,
            node: 0,
            whole_at_once: false,
            confirmed: true,
            entitled: 0,
            believes: None,
            found: None,
            needed: 0,
        }
    }

    /// A history under several limits; its plan has the first of them.
    pub(super) fn of_several(limits: &[&str]) -> Self {
        let parsed: Vec<_> = limits.iter().map(|limit| Limit::parse(limit).expect(limit)).collect();
        Self { rule: Arc::new(Rule::of("p0", &parsed)), ..Self::new(limits[0]) }
    }

    /// A history of a limit with tokens set aside for nodes that may lose the store.
    pub(super) fn entitled(limit: &str) -> Self {
        let rule = Rule::of("p0", &[Limit::parse(limit).expect(limit)]);
        let rule = Arc::new(Rule { on_store_loss: OnStoreLoss::Entitled, ..rule });
        Self { rule, ..Self::new(limit) }
    }

    pub(super) fn setting(&self) -> Setting {
        let policies = vec![Policy { limits: vec![self.limit.clone()], ..Policy::default() }];
        let mut plan = Plan { policies, span: Span::secs(2), ..Plan::default() };
        (plan.redis.failover, plan.redis.alone) = (Span::secs(1), Span::secs(1));
        Setting { plan, rules: vec![self.rule.clone()] }
    }

    /// A setting in which a master's clock is set.
    pub(super) fn leaping(&self) -> Setting {
        let mut setting = self.setting();
        let what = What::Set { master: 0, by: Span::secs(5), back: false };
        setting.plan.faults.push(Fault { at: Span::secs(1), lasts: Span(0), what });
        setting
    }

    pub(super) fn see(&mut self, observer: &mut dyn Observer, at: u64, seen: &Seen<'_>) {
        observer.see(Moment { at, store: Timestamp(START + at) }, seen);
    }

    pub(super) fn ask(&mut self, observer: &mut dyn Observer, at: u64) -> Request {
        self.ask_for(observer, at, 1)
    }

    /// A check of this cost reaches the node.
    pub(super) fn ask_for(&mut self, observer: &mut dyn Observer, at: u64, cost: u64) -> Request {
        self.id += 1;
        let (node, key, kind) = (0, 0, Kind::Check);
        let request = Request { id: self.id, node, key, policy: 0, cost, kind, asked: at };
        self.see(observer, at, &Seen::Asked(&request));
        request
    }

    pub(super) fn answer(&mut self, observer: &mut dyn Observer, at: u64, request: &Request, source: Source, ok: bool) {
        let end = if self.whole_at_once { START + at } else { (START + at) / SECOND * SECOND + SECOND };
        let reason = if source == Source::Share { Reason::Share } else { Reason::Rate };
        let decision = Decision {
            verdict: if ok { Verdict::Allow } else { Verdict::Deny },
            limit: 10,
            remaining: self.remaining,
            retry_after: (!ok).then_some(Micros(SECOND)),
            reset_after: Micros(end - START - at),
            reset_at: Timestamp(end),
            reason: if ok { Reason::Ok } else { reason },
            source,
            limit_index: 0,
            slot: None,
            epoch: 0,
        };
        let (rule, store) = (self.rule.clone(), Timestamp(START + at));
        let parked = source == Source::Store || request.asked < at;
        self.see(observer, at, &Seen::Answered { request, rule: &rule, decision: &decision, parked, store });
    }

    /// A check is denied from a lease, by a store's clock that is `ahead`.
    pub(super) fn answer_ahead(&mut self, observer: &mut dyn Observer, at: u64, ahead: u64, request: &Request) {
        let now = START + at + ahead;
        let decision = Decision {
            verdict: Verdict::Deny,
            limit: 10,
            remaining: 0,
            retry_after: Some(Micros(SECOND)),
            reset_after: Micros(now / SECOND * SECOND + SECOND - now),
            reset_at: Timestamp(now / SECOND * SECOND + SECOND),
            reason: Reason::Rate,
            source: Source::Lease,
            limit_index: 0,
            slot: None,
            epoch: 0,
        };
        let (rule, store) = (self.rule.clone(), Timestamp(now));
        let seen = Seen::Answered { request, rule: &rule, decision: &decision, parked: false, store };
        self.see(observer, at, &seen);
    }

    /// A check of this cost is admitted on a share, by a clock that is `ahead`.
    pub(super) fn on_share(&mut self, observer: &mut dyn Observer, at: u64, ahead: i64, cost: u64) {
        let request = Request { cost, ..self.ask(observer, at) };
        let now = (START + at).wrapping_add_signed(ahead);
        let decision = Decision {
            verdict: Verdict::Allow,
            limit: 10,
            remaining: self.remaining,
            retry_after: None,
            reset_after: Micros(SECOND - now % SECOND),
            reset_at: Timestamp(now / SECOND * SECOND + SECOND),
            reason: Reason::Ok,
            source: Source::Share,
            limit_index: 0,
            slot: None,
            epoch: 0,
        };
        let (rule, store) = (self.rule.clone(), Timestamp(START + at));
        let seen = Seen::Answered { request: &request, rule: &rule, decision: &decision, parked: false, store };
        self.see(observer, at, &seen);
    }

    /// A check of this cost is denied because of peers' reports, or admitted, and the decision names one of the rule's
    /// limits.
    pub(super) fn decided_by(
        &mut self,
        observer: &mut dyn Observer,
        at: u64,
        rule: &Arc<Rule>,
        cost: u64,
        (source, limit_index): (Source, u8),
    ) {
        let request = Request { cost, ..self.ask(observer, at) };
        let is_denied = source == Source::Prefilter;
        let decision = Decision {
            verdict: if is_denied { Verdict::Deny } else { Verdict::Allow },
            limit: 100,
            remaining: 0,
            retry_after: is_denied.then_some(Micros(SECOND)),
            reset_after: Micros(SECOND - at),
            reset_at: Timestamp(START + SECOND),
            reason: if is_denied { Reason::Rate } else { Reason::Ok },
            source,
            limit_index,
            slot: None,
            epoch: 0,
        };
        let (request, store) = (&request, Timestamp(START + at));
        self.see(observer, at, &Seen::Answered { request, rule, decision: &decision, parked: false, store });
    }

    /// A node learns of a grant under each limit of a rule, in windows that end with the second.
    pub(super) fn lent_by(&mut self, observer: &mut dyn Observer, at: u64, rule: &Arc<Rule>, tokens: u64) {
        self.id += 1;
        let (call, mut grant) = (Call { rule: rule.clone(), ..self.acquire(self.id, tokens) }, self.grant(at, tokens));
        grant.counters[1] = grant.counters[0];
        let (call, grant) = (&call, Some(&grant));
        self.see(observer, at, &Seen::Settled { node: 0, incarnation: 0, key: 0, call, grant });
    }

    /// A node learns of a grant, with these counters.
    pub(super) fn lent_in(
        &mut self,
        observer: &mut dyn Observer,
        at: u64,
        counters: [Counter; MAX_LIMITS],
        tokens: u64,
    ) {
        let (call, grant) = (self.acquire(1, tokens), Grant { counters, ..self.grant(at, tokens) });
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
        let (call, grant) = (&call, Some(&grant));
        self.see(observer, at, &Seen::Settled { node: 0, incarnation: 0, key: 0, call, grant });
    }

    /// A check of this cost, answered at once.
    pub(super) fn check(&mut self, observer: &mut dyn Observer, at: u64, cost: u64, source: Source, ok: bool) {
        let request = Request { cost, ..self.ask(observer, at) };
        self.answer(observer, at, &request, source, ok);
    }

    /// A node asks for tokens under this id.
    pub(super) fn called(&mut self, observer: &mut dyn Observer, at: u64, id: u64, want: u64) {
        let call = self.acquire(id, want);
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// The same, with the number of tokens that the node says it holds.
    pub(super) fn called_holding(&mut self, observer: &mut dyn Observer, at: u64, id: u64, [want, holds]: [u64; 2]) {
        let mut call = self.acquire(id, want);
        if let Op::Acquire(order) = &mut call.op {
            order.held = holds;
        }
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// A node learns of a grant.
    pub(super) fn settled(&mut self, observer: &mut dyn Observer, at: u64, id: u64, tokens: u64) {
        self.settled_in(observer, at, [0, id], tokens);
    }

    /// A node in this life learns of the grant of this call.
    pub(super) fn settled_in(
        &mut self,
        observer: &mut dyn Observer,
        at: u64,
        [incarnation, id]: [u64; 2],
        tokens: u64,
    ) {
        let (call, grant) = (&self.acquire(id, tokens), Some(&self.grant(at, tokens)));
        self.see(observer, at, &Seen::Settled { node: 0, incarnation, key: 0, call, grant });
    }

    /// A node in this life learns that this call got no answer.
    pub(super) fn unanswered_in(&mut self, observer: &mut dyn Observer, at: u64, [incarnation, id]: [u64; 2]) {
        let call = &self.acquire(id, 1);
        self.see(observer, at, &Seen::Settled { node: 0, incarnation, key: 0, call, grant: None });
    }

    fn acquire(&self, id: u64, want: u64) -> Call {
        let mut known: [Known; MAX_LIMITS] = Default::default();
        if self.known > 0 {
            known[..self.known_limits].fill(Known { used: self.known, at: Timestamp(self.known_at) });
        }
        let claim = Claim { believes: self.believes, demand: 1, frees: rationd::core::call::Frees::AtAnyTime, owes: 0 };
        let claim = self.rule.is_entitled().then_some(claim);
        let (window, epoch, ages) = (Window::Current, self.asks_under, rationd::core::call::JUST_NOW);
        let until = None;
        let order = Acquire { need: 1, want, least: 1, window, epoch, held: 0, ages, known, until, claim };
        let op = Op::Acquire(order);
        Call { id, digest: Digest(1), rule: self.rule.clone(), op, sent_at: Instant(0) }
    }

    fn grant(&self, at: u64, granted: u64) -> Grant {
        let mut counters = [Counter::default(); MAX_LIMITS];
        counters[0] =
            Counter { used: self.used, prev: self.prev, at: Timestamp((START + SECOND).wrapping_add(self.opened)) };
        Grant {
            granted,
            replayed: false,
            outdated: false,
            late: false,
            confirmed: self.confirmed,
            damaged: false,
            epoch: self.epoch,
            reset: false,
            nodes: self.nodes,
            now: Timestamp(START + at),
            counters,
            entitled: self.entitled,
            not_kept: 0,
        }
    }

    /// The store lends a token under this id.
    pub(super) fn executed(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        self.used += 1;
        let (call, grant) = (self.acquire(id, 1), self.grant(at, 1));
        self.ran(observer, at, &call, &grant);
    }

    /// A script of the previous build lends a token of a key.
    pub(super) fn ran_earlier(&mut self, observer: &mut dyn Observer, at: u64, key: u32) {
        let (call, grant) = (&self.acquire(99, 1), &self.grant(at, 1));
        let ran = &Ran { is_earlier: true, ..Ran::default() };
        let executed = Seen::Executed { master: 0, node: 2, incarnation: 0, key, call, grant, stale: false, ran };
        self.see(observer, at, &executed);
    }

    /// The store lends tokens by a clock that is `ahead`, and the node learns of it at once.
    pub(super) fn lent(&mut self, observer: &mut dyn Observer, at: u64, ahead: u64, id: u64, tokens: u64) {
        let call = self.acquire(id, tokens);
        self.ran_by(observer, at, ahead, &call, tokens);
    }

    /// The same for the next window.
    pub(super) fn lent_ahead_by(&mut self, observer: &mut dyn Observer, at: u64, ahead: u64, id: u64, tokens: u64) {
        let call = self.acquire_ahead(id, tokens);
        self.ran_by(observer, at, ahead, &call, tokens);
    }

    fn ran_by(&mut self, observer: &mut dyn Observer, at: u64, ahead: u64, call: &Call, tokens: u64) {
        let grant = self.grant(at, tokens);
        let (grant, ran) = (&Grant { now: grant.now + Micros(ahead), ..grant }, &Ran::default());
        let (node, incarnation, key) = (0, 0, 0);
        let executed = Seen::Executed { master: 0, node, incarnation, key, call, grant, stale: self.stale, ran };
        self.see(observer, at, &executed);
        self.see(observer, at, &Seen::Settled { node, incarnation, key, call, grant: Some(grant) });
    }

    /// The store lends tokens of the next window.
    pub(super) fn lent_ahead(&mut self, observer: &mut dyn Observer, at: u64, tokens: u64) {
        let (call, grant) = (self.acquire_ahead(1, tokens), self.grant(at, tokens));
        self.ran(observer, at, &call, &grant);
    }

    fn acquire_ahead(&self, id: u64, want: u64) -> Call {
        let mut call = self.acquire(id, want);
        if let Op::Acquire(order) = &mut call.op {
            order.window = Window::Next { begins: Timestamp(START + SECOND) };
        }
        call
    }

    /// The store answers once more as before.
    pub(super) fn repeated(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let (call, grant) = (self.acquire(id, 1), Grant { replayed: true, ..self.grant(at, 1) });
        self.ran(observer, at, &call, &grant);
    }

    /// The store takes a refund back.
    pub(super) fn refund(&mut self, observer: &mut dyn Observer, at: u64, cost: u32) {
        let request = Request { kind: Kind::Refund, cost: cost.into(), ..self.ask(observer, at) };
        self.see(observer, at, &Seen::Asked(&request));
        let call = Call { op: Op::Refund { amount: cost.into(), epoch: 0, windows: OPEN }, ..self.acquire(9, 1) };
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
        let grant = self.grant(at, cost.into());
        self.ran(observer, at, &call, &grant);
    }

    /// A refund of a hold or without a window is requested, and waits for a call.
    pub(super) fn refund_waits(&mut self, observer: &mut dyn Observer, at: u64, cost: u64, of_hold: bool) {
        let request = Request { kind: Kind::Refund, cost, id: self.id + 1, ..self.ask(&mut Deaf, at) };
        if of_hold {
            self.see(observer, at, &Seen::Hold(1, Holding::Asks(&request)));
        }
        self.see(observer, at, &Seen::Asked(&request));
    }

    /// A call with refunds leaves, for the window that ends `ends` after the start, or without a window.
    pub(super) fn refund_leaves(&mut self, observer: &mut dyn Observer, at: u64, id: u64, ends: Option<u64>) {
        let call = self.refunding(id, 1, ends);
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// A call leaves that asks the store to take tokens back.
    pub(super) fn refund_leaves_of(&mut self, observer: &mut dyn Observer, at: u64, amount: u64) {
        let call = self.refunding(9, amount, None);
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// This request is granted, at once or when the store has answered.
    pub(super) fn answered_in_turn(&mut self, observer: &mut dyn Observer, at: u64, request: &Request, parked: bool) {
        let source = if parked { Source::Store } else { Source::Lease };
        self.answer(observer, at, request, source, true);
    }

    /// The store executes it.
    pub(super) fn refund_runs(&mut self, observer: &mut dyn Observer, at: u64, [id, cost, taken]: [u64; 3]) {
        let (call, grant) = (self.refunding(id, cost, None), self.grant(at, taken));
        self.ran(observer, at, &call, &grant);
    }

    fn refunding(&self, id: u64, amount: u64, ends: Option<u64>) -> Call {
        let mut windows = OPEN;
        windows[0] = ends.and_then(|ends| Timestamp(START + ends).stored());
        Call { op: Op::Refund { amount, epoch: 0, windows }, ..self.acquire(id, 1) }
    }

    /// The store executes this call once more, or too late.
    pub(super) fn refund_again(&mut self, observer: &mut dyn Observer, at: u64, cost: u32, marks: [bool; 2]) {
        let call = Call { op: Op::Refund { amount: cost.into(), epoch: 0, windows: OPEN }, ..self.acquire(9, 1) };
        let [replayed, outdated] = marks;
        let grant = Grant { replayed, outdated, ..self.grant(at, cost.into()) };
        self.ran(observer, at, &call, &grant);
    }

    /// The store forgets the key.
    pub(super) fn reset(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let (call, grant) = (Call { op: Op::Reset, ..self.acquire(id, 1) }, self.grant(at, 0));
        self.ran(observer, at, &call, &grant);
    }

    /// The node that has asked for that learns of it.
    pub(super) fn hears_of_reset(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let (call, grant) = (&Call { op: Op::Reset, ..self.acquire(id, 1) }, Some(&self.grant(at, 0)));
        self.see(observer, at, &Seen::Settled { node: self.node, incarnation: 1, key: 0, call, grant });
    }

    fn ran(&mut self, observer: &mut dyn Observer, at: u64, call: &Call, grant: &Grant) {
        let seen = Seen::Executed {
            master: 0,
            node: self.node,
            incarnation: 1,
            key: 0,
            call,
            grant,
            stale: self.stale,
            ran: &Ran { hash: [self.found, None].into(), ..Ran::default() },
        };
        self.see(observer, at, &seen);
    }

    /// A node hands tokens of this window back, and learns that all were taken, or does not yet.
    pub(super) fn hands_back(&mut self, observer: &mut dyn Observer, at: u64, amount: u64, is_answered: bool) {
        let mut call = self.voiding(0);
        if let Op::Return { amount: of, windows, voids: Some(voids), .. } = &mut call.op {
            (*of, windows[0], voids.need) = (amount, Timestamp(START + SECOND).stored(), 0);
        }
        call.id = 50 + at;
        let (node, incarnation, key) = (0, 0, 0);
        self.see(observer, at, &Seen::Called { node, key, call: &call, sent: true });
        if is_answered {
            let grant = &self.grant(at, amount);
            self.see(observer, at, &Seen::Settled { node, incarnation, key, call: &call, grant: Some(grant) });
        }
    }

    /// A call leaves that hands tokens of these windows back.
    pub(super) fn returns_of(&mut self, observer: &mut dyn Observer, at: u64, ends: [Timestamp; 2], amount: u64) {
        let mut call = self.voiding(0);
        if let Op::Return { amount: of, windows, voids: Some(voids), .. } = &mut call.op {
            (*of, windows[0], windows[1], voids.need) = (amount, ends[0].stored(), ends[1].stored(), 0);
        }
        call.id = 50 + at;
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// A node hands tokens of this window back, of which `taken` are taken.
    pub(super) fn handed_back(&mut self, observer: &mut dyn Observer, at: u64, amount: u64, taken: u64) {
        let mut call = self.voiding(0);
        if let Op::Return { amount: of, windows, voids: Some(voids), .. } = &mut call.op {
            (*of, windows[0], voids.need) = (amount, Timestamp(START + SECOND).stored(), 0);
        }
        call.id = 50 + at;
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
        let grant = self.grant(at, taken);
        self.ran(observer, at, &call, &grant);
    }

    /// A node declares its order of this id void, and the store executes that.
    pub(super) fn voided(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let (call, grant) = (self.voiding(id), self.grant(at, 0));
        self.ran(observer, at, &call, &grant);
    }

    /// The node peeks at the key in the store.
    pub(super) fn looked(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let call = Call { op: Op::Peek, ..self.acquire(id, 1) };
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// The call that declares an order void leaves.
    pub(super) fn void_called(&mut self, observer: &mut dyn Observer, at: u64, id: u64) {
        let call = self.voiding(id);
        self.see(observer, at, &Seen::Called { node: 0, key: 0, call: &call, sent: true });
    }

    /// A node in this life learns that this call was answered.
    pub(super) fn void_settled_in(&mut self, observer: &mut dyn Observer, at: u64, [incarnation, id]: [u64; 2]) {
        let (call, grant) = (&self.voiding(id), Some(&self.grant(at, 0)));
        self.see(observer, at, &Seen::Settled { node: 0, incarnation, key: 0, call, grant });
    }

    /// Node 0, which has this limit, lends tokens on to node 1, which has asked for three, and two at least.
    pub(super) fn lent_on(&mut self, observer: &mut dyn Observer, at: u64, limit: &str, tokens: u64, leaves: bool) {
        let (ask, answer, rule) = (peer_ask(1, 3, 2), loan(tokens), Self::new(limit).rule);
        let (node, incarnation, key, peer, store) = (0, 0, 0, (1, 0), Timestamp(START + at));
        let (ask, answer, rule) = (&ask, &answer, &rule);
        self.see(observer, at, &Seen::PeerAnswered { node, incarnation, key, peer, ask, answer, rule, leaves, store });
    }

    /// Node 0, in this life, lends tokens that are set aside for it to node 1, which hears of that later.
    pub(super) fn lent_aside(
        &mut self,
        observer: &mut dyn Observer,
        [at, heard]: [u64; 2],
        incarnation: u64,
        tokens: u64,
    ) {
        let (ask, rule) = (peer_ask(1, 3, 2), self.rule.clone());
        let answer = loan(tokens).map(|loan| Loan { aside: true, ..loan });
        let (key, peer, store) = (0, (1, 0), Timestamp(START + at));
        let (ask, answer, rule, leaves) = (&ask, &answer, &rule, false);
        let lent = Seen::PeerAnswered { node: 0, incarnation, key, peer, ask, answer, rule, leaves, store };
        self.see(observer, at, &lent);
        let (peer, store) = ((0, incarnation), Timestamp(START + heard));
        self.see(observer, heard, &Seen::PeerHeard { node: 1, incarnation: 0, key, peer, ask, answer, store });
    }

    /// Node 1 hears of a loan.
    pub(super) fn heard_of_loan(&mut self, observer: &mut dyn Observer, at: u64, tokens: u64) {
        let (ask, answer) = (peer_ask(1, 3, 2), loan(tokens));
        let (node, incarnation, key, peer, store) = (1, 0, 0, (0, 0), Timestamp(START + at));
        let (ask, answer) = (&ask, &answer);
        self.see(observer, at, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
    }

    fn voiding(&self, id: u64) -> Call {
        let voids = Some(Voided { id, need: self.needed, ..Voided::default() });
        let (ages, windows) = (rationd::core::call::JUST_NOW, OPEN);
        let op = Op::Return { amount: 0, epoch: self.epoch, held: 0, ages, windows, voids };
        Call { op, ..self.acquire(id + 1, 0) }
    }
}

/// A peer's ask under a limit of ten a second.
pub(super) fn peer_ask(id: u64, want: u64, least: u64) -> Ask {
    let rule = History::new("10/1s fixed").rule;
    let terms = Terms { rule: rule.fingerprint(), want, least, patience: Micros(5_000), aside: false };
    Ask { id, digest: Digest(1), key: b"k".as_slice().into(), rule, terms, awaited: terms.patience }
}

pub(super) fn loan(tokens: u64) -> Answer {
    let clock = [Timestamp(START); 2];
    let counters = [Counter::default(); MAX_LIMITS];
    Ok(Loan { tokens, lasts: None, clock, epoch: 1, counters, wait: Micros::ZERO, aside: false })
}

#[test]
fn every_checker_has_its_sheet() {
    let setting = History::new("10/1s fixed").setting();
    let of_checkers = super::all(&setting).into_iter().map(|checker| checker.sheet().file);
    assert!(of_checkers.eq(super::sheets().into_iter().map(|sheet| sheet.file)));
}

/// The text of a checker's file without its tests, and of those whose parts it uses.
fn text_of(file: &str) -> String {
    let path = format!("{}/src/checkers/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(&path);
    let own = text.split("#[cfg(test)]").next().unwrap_or_default();
    // `phased` and `sheet` are used by all; they need no events of their own.
    let others = own.split("super::").skip(1).filter_map(|rest| rest.split_once("::")).map(|(module, _)| module);
    let others = others.filter(|module| !["phased", "sheet"].contains(module) && !module.contains([' ', ';']));
    others.map(|module| text_of(&format!("{module}.rs"))).fold(own.to_owned(), |all, text| all + &text)
}

#[test]
fn what_a_checker_takes_up_it_is_told() {
    let setting = History::new("10/1s fixed").setting();
    for checker in super::all(&setting) {
        let file = checker.sheet().file;
        let text = text_of(file);
        for (topic, name) in
            [(Topic::Asked, "Asked"), (Topic::Audit, "Audit"), (Topic::Reported, "Reported"), (Topic::Picked, "Picked")]
        {
            let takes = [format!("Seen::{name}("), format!("Seen::{name} {{")].iter().any(|event| text.contains(event));
            assert_eq!(checker.minds(topic), takes, "{file}: {name}");
        }
    }
}

/// Shows each checker all events, also those that it ignores.
struct Forwarder {
    checkers: Vec<Box<dyn Checker>>,
    seen: u64,
    compared: u64,
}

/// Only one in this many events is examined for what it changes, because that compares a checker's whole state.
const STEP: u64 = 101;

impl Observer for Forwarder {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.seen += 1;
        for checker in &mut self.checkers {
            let is_ignored = seen.topic().is_some_and(|topic| checker.ignores(topic));
            let before = (is_ignored && self.seen.is_multiple_of(STEP)).then(|| format!("{checker:?}"));
            checker.see(moment, seen);
            if let Some(before) = before {
                let file = checker.sheet().file;
                assert!(before == format!("{checker:?}"), "{file} says that it ignores this, and does not: {seen:?}");
                self.compared += 1;
            }
        }
    }
}

#[test]
fn what_a_checker_ignores_changes_nothing() {
    // These have owners or none, cuts, a malicious node, limits that change, clocks that are set and slots that move.
    for seed in [1, 3, 8, 18, 22, 10_000_000_000_002] {
        let setting = world::setting(&swarm::plan(seed)).expect("a plan of the swarm");
        let mut forwarder = Forwarder { checkers: super::all(&setting), seen: 0, compared: 0 };
        World::new(&setting, &mut Scripts::new(), Watch::new(vec![&mut forwarder])).run();
        assert!(forwarder.compared > 100, "seed {seed}: {}", forwarder.compared);
    }
}

/// Whole runs are exempt only if there is nothing to judge in them; all other exemptions are of keys, windows or
/// moments.
#[test]
fn whole_runs_are_exempt_only_where_there_is_nothing_to_judge() {
    let nothing = ["baselines", "runs without gossip", "runs whose nodes ask no peers"];
    // These exempt only some keys of runs, until the reason is over.
    let of_keys = ["a key of which a call, or an ask of a peer,", "in runs without gossip, a fixed window"];
    let mut found = Vec::new();
    for sheet in super::sheets() {
        for name in sheet.exemptions.iter().map(|exemption| exemption.name) {
            let names_runs = name.split(|of: char| !of.is_alphabetic()).any(|word| word == "runs");
            let is_known = nothing.contains(&name) || of_keys.iter().any(|of| name.starts_with(of));
            if names_runs && !is_known {
                found.push(format!("{}: {name}", sheet.file));
            }
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
