//! The plan of a run, written out completely. Scenario files, expanded swarm seeds and shrunk failures have this
//! form. A run depends on nothing but its plan and the seed in it.
//!
//! Unknown keys in a file are errors; `simulations schema` prints the JSON schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::span::Span;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// What it is called: the file's name.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// All randomness comes from it.
    pub seed: u64,
    /// How long the fault phase takes.
    pub span: Span,
    /// How long the liveness phase after it takes, in which everything heals; 0: there is none.
    pub calm: Span,
    /// What happens before counts for the invariants and not for the figures.
    pub warm_up: Span,
    /// Daemons at the start.
    pub nodes: u32,
    /// What decides in each of them.
    pub brain: Brain,
    /// The daemons' settings.
    pub daemon: Daemon,
    /// The daemons' clocks.
    pub clocks: Clocks,
    /// The network between daemons and Redis.
    pub network: Network,
    /// Daemons that are further from Redis than others; those of no zone are near.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Zone>,
    /// The Redis Cluster.
    pub redis: Redis,
    /// How daemons hear of each other; absent: each is alone with the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gossip: Option<Gossip>,
    /// Policies, which demands name by their place in this list.
    pub policies: Vec<Policy>,
    /// Who asks.
    pub demand: Vec<Demand>,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
    /// What must hold beside the invariants.
    pub expect: Expect,
    /// Goals beyond the expectations. A missed goal is reported, but is no failure.
    pub goal: Expect,
    /// A deliberate walk through a `HashMap`, which double runs must notice: `tests/reproducible.rs`.
    #[serde(skip)]
    pub canary: bool,
}

/// The other keys of a request of several are drawn from the first so many keys of a demand.
pub const SEVERAL_OF: u32 = 6;

impl Plan {
    /// The wanted figures: the goals, and the expectations for bounds without a goal.
    #[must_use]
    pub fn wanted(&self) -> Expect {
        let (goal, expect) = (self.goal, self.expect);
        Expect {
            used: goal.used.or(expect.used),
            calls: goal.calls.or(expect.calls),
            calls_per_window: goal.calls_per_window.or(expect.calls_per_window),
            waits: goal.waits.or(expect.waits),
            over: goal.over.or(expect.over),
            slots_over: goal.slots_over.or(expect.slots_over),
            slots_used: goal.slots_used.or(expect.slots_used),
            slots_denied: goal.slots_denied.or(expect.slots_denied),
            herd: goal.herd.or(expect.herd),
            fairness: goal.fairness.or(expect.fairness),
            shares: goal.shares.or(expect.shares),
            answer: goal.answer.or(expect.answer),
            p99: goal.p99.or(expect.p99),
            p999: goal.p999.or(expect.p999),
            peer_p99: goal.peer_p99.or(expect.peer_p99),
            loans_lost: goal.loans_lost.or(expect.loans_lost),
            news: goal.news.or(expect.news),
            first: goal.first.or(expect.first),
            false_denials: goal.false_denials.or(expect.false_denials),
            herd_back: goal.herd_back.or(expect.herd_back),
            told: goal.told.or(expect.told),
        }
    }

    /// Whether the clock that a key is counted by may leap: its slot moves, or a replica takes over, whose clock is
    /// another, or a clock is set.
    #[must_use]
    pub fn clocks_leap(&self) -> bool {
        let has = |is: fn(&What) -> bool| self.faults.iter().any(|fault| is(&fault.what));
        let moves = self.redis.skew.0 > 0 && has(|what| matches!(what, What::Reshard { .. }));
        let fails_over = self.redis.replica && self.redis.replica_skew.0 > 0 && has(What::stops_masters);
        moves || fails_over || has(|what| matches!(what, What::Set { .. }))
    }

    /// Most keys that are asked for at a time. A request of several keys asks for some keys of a demand under other policies, too, where they
    /// are other keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        let of = |demand: &Demand| {
            let others = if demand.several > 0 { SEVERAL_OF.min(demand.keys) * self.policies.len() as u32 } else { 0 };
            u64::from(demand.keys) + u64::from(others)
        };
        self.demand.iter().map(of).sum()
    }

    /// How long after the last fault servers may still be on their way back: a failover, and the time in which the new
    /// master has no replica. Nothing, where no master was away.
    #[must_use]
    pub fn recovery(&self) -> Span {
        let is_due = self.faults.iter().any(|fault| fault.what.stops_masters());
        if is_due { self.longest_recovery() } else { Span(0) }
    }

    /// The same, if a master was away.
    #[must_use]
    pub fn longest_recovery(&self) -> Span {
        Span(self.redis.failover.0 + self.redis.alone.0)
    }

    /// About how many checks it makes.
    #[must_use]
    pub fn checks(&self) -> u64 {
        let span = self.span.0 + self.calm.0;
        let later = |demand: &Demand| if demand.later.0 > 0 { span.saturating_sub(demand.later.0) } else { 0 };
        let micros = |demand: &Demand| demand.rate * (span - later(demand)) + demand.later_rate * later(demand);
        self.demand.iter().map(|demand| micros(demand) / 1_000_000).sum()
    }

    /// About how long it takes to run, beside others: by its checks, which cost a baseline a script each.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.checks() * if self.brain == Brain::Rationd { 1 } else { 10 }
    }
}

/// What decides in a daemon: the shipped core, or a baseline to compare it with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Brain {
    /// The shipped core.
    #[default]
    Rationd,
    /// One store call per check.
    PerRequest,
    /// The same, but a denial is remembered until the store said it ends.
    Remembered,
    /// Leases of always one token: what a lease costs that is not tuned.
    BatchOne,
    /// Leases of always a thousand tokens.
    BatchThousand,
    /// A batch that grows by half when it was used whole, and is halved when less than half was used.
    GrowHalve,
    /// Every node has limit / nodes for itself and asks nobody.
    Split,
}

/// The daemons' settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// `store.timeout`.
    pub timeout: Span,
    /// `node.max_keys`.
    pub max_keys: u32,
    /// Shards of each node, which share its keys by their digests; the daemon has 64.
    #[serde(skip_serializing_if = "is_one")]
    pub shards: u32,
    /// `store.confirm`: wait for a replica.
    pub confirm: bool,
    /// Whether nodes that hear of each other ask each other for tokens, before the store or in its place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub owners: bool,
}

/// The daemons' clocks. The store's time and true time are the same but for `Redis::skew`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// Each node's monotonic clock runs up to so many millionths fast or slow.
    pub drift_ppm: u32,
    /// Each node's wall clock is up to so much ahead or behind.
    pub offset: Span,
}

/// The network between daemons and Redis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Shortest way of a message.
    pub latency: Span,
    /// Added to it: exponentially distributed with this mean.
    pub jitter: Span,
    /// Of a thousand messages, so many are lost.
    pub loss: u32,
    /// Of a thousand messages, so many arrive twice.
    pub repeats: u32,
    /// How calls and their answers travel.
    pub calls: Calls,
}

/// How calls and their answers travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Calls {
    /// Each by itself: it overtakes others, is lost or arrives twice, and is given up after `store.timeout`.
    #[default]
    Letters,
    /// In order on connections: what is lost is sent again and arrives late, nothing arrives twice, and a
    /// call is given up only with its connection.
    Streams,
}

/// Daemons in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Zone {
    /// Of a thousand daemons, so many.
    pub nodes: u32,
    /// How much longer the round trip to Redis is.
    pub store: Span,
}

impl Zone {
    /// The zone of a node, if it is in one. Each zone takes its part of the nodes that are in no earlier zone, spread
    /// evenly over their numbers.
    #[must_use]
    pub fn of(zones: &[Self], node: u32) -> Option<&Self> {
        let (mut place, mut rest) = (u64::from(node), 1_000);
        zones.iter().find(|zone| {
            let part = u64::from(zone.nodes).min(rest);
            let before = |places: u64| (places * part).checked_div(rest).unwrap_or(0);
            let (taken, is_in) = (before(place + 1), before(place + 1) > before(place));
            place -= taken.min(place);
            rest -= part;
            is_in
        })
    }
}

/// The Redis Cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Redis {
    /// Masters; slots are spread evenly over them.
    pub masters: u32,
    /// Each has a replica.
    pub replica: bool,
    /// How far a replica lags behind.
    pub lag: Span,
    /// In each half second the replica stalls once for up to so long (a quarter of a second at most), and then catches
    /// up at once.
    pub lag_stalls: Span,
    /// How long after its master went a replica takes over; an isolated master stops taking writes
    /// then.
    pub failover: Span,
    /// How long after a failover the new master has no replica.
    pub alone: Span,
    /// The masters' clocks are up to so much ahead or behind of true time.
    pub skew: Span,
    /// The clock of a replica that takes over is up to so much ahead or behind of its master's.
    pub replica_skew: Span,
    /// What one script costs a server.
    pub script_cost: Span,
    /// Whether `script_cost` is only the mean of varying costs.
    pub script_cost_varies: bool,
    /// Of a thousand scripts, so many take up to 20 ms longer.
    pub stalls: u32,
}

/// How daemons hear of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gossip {
    /// `fleet.tick`: between two rounds of a node.
    pub tick: Span,
    /// How long it takes until a node that can be heard counts as alive.
    pub join: Span,
    /// How long it takes until a node that is heard no more counts as gone.
    pub dead: Span,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// By the grammar of the configuration: `100/1s burst 200`.
    pub limits: Vec<String>,
    /// `share`, `entitled`, `allow` or `deny`.
    pub on_store_loss: OnStoreLoss,
}

/// See [`rationd::core::policy::OnStoreLoss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnStoreLoss {
    /// Go on within the node's share.
    #[default]
    Share,
    /// Go on within what the store has set aside for the node.
    Entitled,
    /// Let everything pass.
    Allow,
    /// Let nothing pass.
    Deny,
}

/// A source of checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Demand {
    /// The policy, by its place in the list.
    pub policy: u32,
    /// Checks a second of the whole fleet, on average.
    pub rate: u64,
    /// How they are spread over time.
    pub shape: Shape,
    /// When it begins.
    pub from: Span,
    /// When it ends; 0: never.
    pub until: Span,
    /// From when on `later_rate` counts, and not `rate`; 0: never.
    pub later: Span,
    /// Checks a second from then on.
    pub later_rate: u64,
    /// Keys that are asked about.
    pub keys: u32,
    /// How their popularity falls: the exponent of Zipf's law in thousandths; 0: all the same.
    pub key_skew: u32,
    /// Each of these spans the keys are others.
    pub churn: Span,
    /// How the checks of a key are spread over the nodes.
    pub spread: Spread,
    /// Costs are drawn evenly from `cost_from` to this.
    pub cost: u32,
    /// The least that a check costs.
    pub cost_from: u32,
    /// Of a thousand admitted checks, so many are refunded a little later.
    pub refunds: u32,
    /// Of a thousand checks, so many are holds: their cost is an estimate, and settled later.
    pub holds: u32,
    /// The longest until a hold is settled; the last eighth of that is too late.
    pub settle: Span,
    /// Most that a hold really cost, in thousandths of its estimate.
    pub actual: u32,
    /// Of a thousand checks, so many peek.
    pub peeks: u32,
    /// Of a thousand checks, so many reset the key instead.
    pub resets: u32,
    /// Of a thousand checks, so many ask for other keys, too, of any policy: all or nothing.
    pub several: u32,
    /// A client gives up after this and asks no more about it; 0: never.
    pub patience: Span,
    /// The longest that a client keeps a slot of a concurrent limit before it releases it.
    pub stays: Span,
    /// Of a thousand slots, so many are not released once: their connection ends, or nobody ends them, or they are
    /// released twice.
    pub drops: u32,
}

/// How checks are spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Shape {
    /// At even distances.
    Steady,
    /// Independent of each other.
    #[default]
    Poisson,
    /// Poisson while on, nothing while off. The rate is that of the time while on.
    OnOff {
        /// How long it is on.
        on: Span,
        /// How long it is off.
        off: Span,
    },
    /// Poisson with a rate that goes from a tenth of the rate to 1.9 of it and back in each period.
    Diurnal {
        /// A day.
        period: Span,
    },
}

/// How the checks of a key are spread over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Spread {
    /// Evenly at random.
    #[default]
    Even,
    /// Each key always at the node that its hash says.
    Sticky,
    /// By Zipf's law with this exponent in thousandths, other nodes first for each key.
    Zipf {
        /// The exponent in thousandths.
        skew: u32,
    },
    /// All at one node.
    One {
        /// Which.
        node: u32,
    },
    /// The node changes at random after each of these spans: a bursty client behind a balancer.
    Wander {
        /// How long it stays.
        stay: Span,
    },
}

/// Something that goes wrong, from `at` on; where it lasts, for `lasts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When it begins.
    pub at: Span,
    /// How long it takes. What happens at one moment has no use for it.
    #[serde(default)]
    pub lasts: Span,
    /// What.
    pub what: What,
}

/// What goes wrong. Nodes and masters are taken modulo how many there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum What {
    /// Messages between these nodes and masters are lost. No nodes or no masters: all of them.
    Cut {
        /// The nodes.
        #[serde(default)]
        nodes: Vec<u32>,
        /// The masters.
        #[serde(default)]
        masters: Vec<u32>,
        /// Which messages.
        #[serde(default)]
        way: Way,
    },
    /// Random cuts between single nodes and masters that come and go within the span.
    Swizzle,
    /// Messages between nodes and this master are held, and delivered together when it ends.
    Clog {
        /// The master.
        master: u32,
    },
    /// Every message to or from this master takes so much longer.
    Slow {
        /// The master.
        master: u32,
        /// How much.
        by: Span,
    },
    /// Of a thousand messages, so many more are lost and repeated.
    Noise {
        /// Lost.
        loss: u32,
        /// Repeated.
        repeats: u32,
    },
    /// A master dies; its replica takes over, without the last writes. It never comes back itself.
    Kill {
        /// The master.
        master: u32,
    },
    /// A master does nothing, then goes on; if that takes longer than a failover, as a replica.
    Pause {
        /// The master.
        master: u32,
    },
    /// A master and these nodes see each other and nobody else.
    Isolate {
        /// The master.
        master: u32,
        /// The nodes with it.
        nodes: Vec<u32>,
    },
    /// A master answers each call with this error.
    Refuse {
        /// The master.
        master: u32,
        /// Its first word: `CLUSTERDOWN`, `LOADING`, `READONLY`, `OOM`, `BUSY`, `TRYAGAIN`.
        error: String,
    },
    /// A master's replica is away: nothing can be confirmed.
    NoReplica {
        /// The master.
        master: u32,
    },
    /// A master forgets its scripts.
    ScriptFlush {
        /// The master.
        master: u32,
    },
    /// A part of a master's slots goes to another one, key by key, by ASK and MOVED.
    Reshard {
        /// From.
        from: u32,
        /// To.
        to: u32,
        /// How many of a thousand of its slots.
        part: u32,
    },
    /// A master loses all keys.
    FlushAll {
        /// The master.
        master: u32,
    },
    /// Of a thousand keys of a master, so many vanish.
    Evict {
        /// The master.
        master: u32,
        /// How many.
        part: u32,
    },
    /// A node dies with what it holds, and is back with a new incarnation after `lasts`.
    Crash {
        /// The node.
        node: u32,
    },
    /// A node does nothing, then goes on.
    Freeze {
        /// The node.
        node: u32,
    },
    /// Nodes get no processor again and again: they do nothing for a third of `longest` up to all of it, and
    /// run for up to as long in between. No nodes: all of them.
    Starve {
        /// The nodes.
        #[serde(default)]
        nodes: Vec<u32>,
        /// The longest that one does nothing at a time.
        longest: Span,
    },
    /// A node drains and leaves, and is back with a new incarnation after `lasts`.
    Restart {
        /// The node.
        node: u32,
    },
    /// All nodes, one after another within the span: `crash` or drain, back after `down`.
    Roll {
        /// Whether they crash instead of draining.
        #[serde(default)]
        crash: bool,
        /// How long each is down.
        down: Span,
    },
    /// The fleet has so many nodes in the end; those that leave drain. Evenly within the span.
    Scale {
        /// How many.
        nodes: u32,
    },
    /// A policy gets other limits; each node learns it at another moment within the span.
    Push {
        /// The policy.
        policy: u32,
        /// Its limits from then on.
        limits: Vec<String>,
    },
    /// A node's wall clock jumps; its monotonic clock and its decisions must not care.
    Jump {
        /// The node.
        node: u32,
        /// Ahead.
        by: Span,
    },
    /// A master's clock is set.
    Set {
        /// The master.
        master: u32,
        /// By how much.
        by: Span,
        /// Back instead of forward.
        #[serde(default)]
        back: bool,
    },
    /// Nodes do not hear of these nodes any more, nor these of them: membership and digests are cut,
    /// the store is not.
    Part {
        /// The nodes on the one side.
        nodes: Vec<u32>,
        /// These nodes still hear of the others.
        #[serde(default)]
        one_way: bool,
    },
    /// A node tells its peers what is not so.
    Liar {
        /// The node.
        node: u32,
        /// What it tells of all keys.
        lie: Lie,
    },
    /// These nodes run another build: what they tell their peers is of another version, and what those
    /// tell them they read as far as they know it. Nothing else of them differs.
    Build {
        /// The nodes.
        nodes: Vec<u32>,
        /// It is the build after this one instead of the one before.
        #[serde(default)]
        newer: bool,
    },
    /// The demand is so many times as high, in thousandths.
    Surge {
        /// How high.
        factor: u32,
    },
}

impl What {
    /// Whether a replica may take over from a master, and be without a replica of its own for a while.
    #[must_use]
    pub fn stops_masters(&self) -> bool {
        matches!(self, Self::Kill { .. } | Self::Pause { .. } | Self::Isolate { .. })
    }

    /// Whether nodes do nothing for a while: they answer late, and tell late.
    #[must_use]
    pub fn stops_nodes(&self) -> bool {
        matches!(self, Self::Freeze { .. } | Self::Starve { .. })
    }
}

/// What a node tells that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// It admitted all there is and more, in the window at hand.
    Huge,
    /// It took back more than anybody admitted.
    Negative,
    /// The same as huge, in windows long past.
    Stale,
    /// The same as huge, in windows far ahead.
    Early,
}

/// Which messages a cut takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Both ways.
    #[default]
    Both,
    /// Calls.
    ToRedis,
    /// Answers.
    FromRedis,
}

/// What a run should come to, beside the invariants. What is absent is not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Least part of what could be admitted, in thousandths of a percent: 99500 = 99.5 %.
    pub used: Option<u32>,
    /// Most store calls per 1000 checks.
    pub calls: Option<u32>,
    /// Most store calls per window and node.
    pub calls_per_window: Option<u32>,
    /// Most checks that wait for the store, in thousandths of a percent.
    pub waits: Option<u32>,
    /// Most that is admitted beyond a limit in a window, in thousandths of a percent of it.
    pub over: Option<u32>,
    /// Most slots of a concurrent limit that are in clients' hands at a time beyond it, in thousandths of a percent of it.
    pub slots_over: Option<u32>,
    /// Least part of the slots of a concurrent limit that clients hold when one is asked for, on average, in thousandths of a percent.
    pub slots_used: Option<u32>,
    /// Most checks of a concurrent limit that are denied though so many slots are in nobody's hands, in thousandths of a percent.
    pub slots_denied: Option<u32>,
    /// Most store calls in any 10 ms, in thousandths of the mean.
    pub herd: Option<u32>,
    /// Least fairness between the nodes (Jain's index), in thousandths.
    pub fairness: Option<u32>,
    /// Most checks that are decided by a share, in thousandths of a percent.
    pub shares: Option<u32>,
    /// Longest answer.
    pub answer: Option<Span>,
    /// Within which 99 % of the checks are answered, and 99.9 %.
    pub p99: Option<Span>,
    /// See there.
    pub p999: Option<Span>,
    /// Within which 99 % of the checks are answered that wait for a peer.
    pub peer_p99: Option<Span>,
    /// Most of the tokens that nodes lend on to each other whose loan comes too late or not at all, in thousandths of a percent.
    pub loans_lost: Option<u32>,
    /// How old 99 % of the news are at most that nodes hear of peers: since the first token that a peer had admitted and they did not know
    /// of.
    pub news: Option<Span>,
    /// Longest first answer of a node that joins.
    pub first: Option<Span>,
    /// Most checks that are denied though by what was really admitted there were tokens, in thousandths of a percent.
    pub false_denials: Option<u32>,
    /// Most store calls in the first second in which nodes reach the store again, in thousandths of those in a second
    /// before they lost it.
    pub herd_back: Option<u32>,
    /// Most bytes a second that come to peers of what one node tells of usage.
    pub told: Option<u32>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            name: String::new(),
            about: String::new(),
            seed: 1,
            span: Span::secs(10),
            calm: Span(0),
            warm_up: Span(0),
            nodes: 3,
            brain: Brain::default(),
            daemon: Daemon::default(),
            clocks: Clocks::default(),
            network: Network::default(),
            zones: Vec::new(),
            redis: Redis::default(),
            gossip: None,
            policies: vec![Policy::default()],
            demand: vec![Demand::default()],
            faults: Vec::new(),
            expect: Expect::default(),
            goal: Expect::default(),
            canary: false,
        }
    }
}

/// Whether a value is the default of plans that were kept before the key existed.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

impl Default for Daemon {
    fn default() -> Self {
        Self { timeout: Span::millis(50), max_keys: 100_000, shards: 1, confirm: true, owners: false }
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self { drift_ppm: 100, offset: Span::secs(1) }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self { latency: Span(200), jitter: Span(50), loss: 0, repeats: 0, calls: Calls::default() }
    }
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            masters: 3,
            replica: true,
            lag: Span::millis(1),
            lag_stalls: Span(0),
            failover: Span::secs(2),
            alone: Span::secs(2),
            skew: Span(0),
            replica_skew: Span(0),
            script_cost: Span(15),
            script_cost_varies: false,
            stalls: 0,
        }
    }
}

impl Default for Gossip {
    fn default() -> Self {
        Self { tick: Span::millis(200), join: Span::millis(600), dead: Span::secs(6) }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { limits: vec!["1000/1s fixed".into()], on_store_loss: OnStoreLoss::Share }
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            policy: 0,
            rate: 2_000,
            shape: Shape::default(),
            from: Span(0),
            until: Span(0),
            later: Span(0),
            later_rate: 0,
            keys: 1,
            key_skew: 0,
            churn: Span(0),
            spread: Spread::default(),
            cost: 1,
            cost_from: 1,
            refunds: 0,
            holds: 0,
            settle: Span::secs(1),
            actual: 1_500,
            peeks: 0,
            resets: 0,
            several: 0,
            patience: Span(0),
            stays: Span::millis(200),
            drops: 0,
        }
    }
}
