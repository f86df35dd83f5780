//! Policies: which limits apply to a key, their overrides, and further settings.
//!
//! A [`PolicySet`] is compiled as a whole or not at all, and never changes; a reload makes another one. Called to
//! turn a policy's name and a key into a [`Rule`].

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::decision::{Decision, Reason, Verdict};
use super::key::Digest;
use super::limit::{Algorithm, Limit, LimitError, MAX_LIMITS};
use super::overrides::{Overrides, Subject};
use super::route::RouteSet;
pub use super::rule::{OnStoreLoss, Plan, Rule};
use super::rule::{can_be_entitled, has_short_slots};

/// The policy name of limits in the command (`CL.THROTTLE`). No configured policy can have it.
pub const AD_HOC: &str = "cl.throttle";

/// The policy name of limits in a descriptor. No configured policy can have it.
pub const OVERRIDDEN: &str = "envoy.limit";

/// What follows a policy's name where its `candidate` is meant. No configured policy ends with it.
pub const ON_TRIAL: &str = " (candidate)";

/// A policy as it applies to keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: Arc<str>,
    /// The plan for keys without an override.
    pub plan: Plan,
    /// Other plans for single keys, and for keys with a common prefix or suffix.
    pub overrides: Overrides,
    /// Percentage of keys for which denials are enforced: normally 100, and 0 in shadow mode.
    pub enforce: u8,
    /// Whether clients may refund what was spent.
    pub refunds: bool,
    /// Limits on trial: they decide for keys without an override beside `plan`, and are counted, not followed. Their
    /// policy's name is this one's with [`ON_TRIAL`] behind it.
    pub candidate: Option<Arc<Rule>>,
}

/// All policies of one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySet {
    policies: BTreeMap<Name, Arc<Policy>>,
    routes: RouteSet,
}

/// A policy's name. It is looked for by the bytes that a client sends, so that no check pays for finding out whether they are text: texts
/// are in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name(Arc<str>);

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A policy as the configuration has it.
#[derive(Clone, Debug, Default)]
pub struct PolicySpec {
    /// Limits in the grammar of `limit.rs`.
    pub limits: Vec<String>,
    /// Limits on trial: see [`Policy::candidate`]. Empty for none. An override has none.
    pub candidate: Vec<String>,
    /// What to do while the store is away.
    pub on_store_loss: OnStoreLoss,
    /// Shadow mode: decide, count and report, but never deny.
    pub shadow: bool,
    /// Enforce denials for this percentage of keys only.
    pub enforce: Option<u8>,
    /// Whether clients may refund what was spent; `None` means that they may.
    pub refunds: Option<bool>,
    /// Nothing is limited.
    pub unlimited: bool,
    /// Every check is denied (only in an override).
    pub blocked: bool,
    /// Other plans for single keys, or with a `*` at one end for keys with a common prefix or suffix. Their own
    /// `overrides`, `candidate`, `shadow`, `enforce` and `refunds` are ignored.
    pub overrides: BTreeMap<String, PolicySpec>,
}

impl PolicySpec {
    /// Whether it has a concurrent limit, for any key.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        let is = |text: &String| Limit::parse(text).is_ok_and(|limit| limit.algorithm == Algorithm::Concurrent);
        self.limits.iter().any(is) || self.overrides.values().any(Self::is_concurrent)
    }
}

/// An error in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The policy.
    pub policy: String,
    /// The key of the override, if it is in one.
    pub override_key: Option<String>,
    /// The index of the limit, if it is about one.
    pub limit: Option<usize>,
    /// What is wrong, what was expected, what to do.
    pub problem: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy {:?}", self.policy)?;
        if let Some(key) = &self.override_key {
            write!(f, ", override {key:?}")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {}", limit + 1)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    /// The limits on trial for a key with this plan.
    #[must_use]
    pub fn candidate_beside(&self, plan: &Plan) -> Option<&Arc<Rule>> {
        self.candidate.as_ref().filter(|_| std::ptr::eq(plan, &self.plan))
    }

    /// The plan for `key`.
    #[must_use]
    pub fn plan(&self, key: &[u8]) -> &Plan {
        self.overrides.get(key).unwrap_or(&self.plan)
    }

    /// Whether denials of this key are enforced. The first half of its digest decides, which is all that a recording keeps.
    #[must_use]
    pub fn is_enforced_for(&self, digest: Digest) -> bool {
        self.enforce == 100 || ((digest.0 >> u64::BITS) as u64) % 100 < u64::from(self.enforce)
    }

    /// The decision after the policy's mode was applied: in shadow mode, a denial of this key becomes an admission
    /// with the reason `shadow`.
    #[must_use]
    pub fn enforced(&self, digest: Digest, mut decision: Decision) -> Decision {
        if decision.verdict == Verdict::Deny && !self.is_enforced_for(digest) {
            decision.verdict = Verdict::Allow;
            decision.reason = Reason::Shadow;
            decision.retry_after = None;
        }
        decision
    }
}

impl PolicySet {
    /// Compiles all policies, or reports all errors in them.
    ///
    /// # Errors
    /// All errors in all policies.
    pub fn compile(specs: &BTreeMap<String, PolicySpec>) -> Result<Self, Vec<PolicyError>> {
        let mut errors = Vec::new();
        let mut policies = BTreeMap::new();
        for (name, spec) in specs {
            let policy = compile_policy(name, spec, &mut errors);
            policies.insert(Name(policy.name.clone()), Arc::new(policy));
        }
        if errors.is_empty() { Ok(Self { policies, routes: RouteSet::default() }) } else { Err(errors) }
    }

    /// The policy of that name, which may be any bytes.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Arc<Policy>> {
        self.policies.get(name.as_ref())
    }

    /// The same policies with these routes to them.
    #[must_use]
    pub fn with_routes(self, routes: RouteSet) -> Self {
        Self { routes, ..self }
    }

    /// Which descriptors are limited by which policy.
    #[must_use]
    pub fn routes(&self) -> &RouteSet {
        &self.routes
    }

    /// All policies by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }
}

fn compile_policy(name: &str, spec: &PolicySpec, errors: &mut Vec<PolicyError>) -> Policy {
    let shared: Arc<str> = name.into();
    let mut problem = |override_key: Option<&String>, limit, problem: String| {
        errors.push(PolicyError { policy: name.to_owned(), override_key: override_key.cloned(), limit, problem });
    };
    if name.is_empty() {
        problem(None, None, "a policy needs a name".into());
    }
    if name == AD_HOC {
        problem(None, None, "that is the name of CL.THROTTLE's own keys: choose another".into());
    }
    if name == OVERRIDDEN {
        problem(None, None, "that is the name of limits that Envoy sends itself: choose another".into());
    }
    if name.ends_with(ON_TRIAL) {
        problem(None, None, format!("names that end with {ON_TRIAL:?} are those of candidates: choose another"));
    }
    if spec.blocked {
        problem(None, None, "`blocked` belongs to an override: a policy that blocks every key is no policy".into());
    }
    if spec.enforce.is_some_and(|percent| percent > 100) {
        problem(None, None, "`enforce` is a percentage: 0 to 100".into());
    }
    if spec.shadow && spec.enforce.is_some() {
        problem(None, None, "`shadow` and `enforce` exclude each other: `enforce = 0` is a shadow".into());
    }
    let mut plan = |key: Option<&String>, part: &PolicySpec| {
        compile_plan(&shared, part, spec.on_store_loss, &mut |limit, text| problem(key, limit, text))
    };
    let base = plan(None, spec);
    let plans: Vec<Plan> = spec.overrides.iter().map(|(name, part)| plan(Some(name), part)).collect();
    let mut subjects: BTreeMap<Subject, &String> = BTreeMap::new();
    let mut overrides = Vec::new();
    for ((name, _), plan) in spec.overrides.iter().zip(plans) {
        match Subject::parse(name) {
            Ok(subject) => {
                if let Some(other) = subjects.insert(subject.clone(), name) {
                    problem(Some(name), None, format!("means the same as override {other:?}: keep one"));
                }
                overrides.push((subject, name.clone(), plan));
            }
            Err(text) => problem(Some(name), None, text),
        }
    }
    let overrides = Overrides::new(overrides);
    let candidate = compile_candidate(name, spec, &mut |limit, text| problem(None, limit, text));
    let enforce = if spec.shadow { 0 } else { spec.enforce.unwrap_or(100) };
    Policy { name: shared, plan: base, overrides, enforce, refunds: spec.refunds.unwrap_or(true), candidate }
}

fn compile_candidate(
    name: &str,
    spec: &PolicySpec,
    problem: &mut dyn FnMut(Option<usize>, String),
) -> Option<Arc<Rule>> {
    if spec.candidate.is_empty() {
        return None;
    }
    if spec.limits.is_empty() || spec.is_concurrent() {
        problem(None, "`candidate` needs `limits` beside it, and no concurrent ones".into());
    }
    let tried = PolicySpec { limits: spec.candidate.clone(), ..PolicySpec::default() };
    if tried.is_concurrent() {
        problem(None, "`candidate` cannot be concurrent: what its checks are of would have to end twice".into());
    }
    let shared: Arc<str> = format!("{name}{ON_TRIAL}").into();
    let plan = compile_plan(&shared, &tried, spec.on_store_loss, &mut |limit, text| {
        problem(limit, format!("candidate: {text}"));
    });
    if let Plan::Limited(rule) = plan { Some(rule) } else { None }
}

fn compile_plan(
    policy: &Arc<str>,
    spec: &PolicySpec,
    on_store_loss: OnStoreLoss,
    problem: &mut dyn FnMut(Option<usize>, String),
) -> Plan {
    if [!spec.limits.is_empty(), spec.unlimited, spec.blocked].iter().filter(|set| **set).count() > 1 {
        problem(None, "`limits`, `unlimited` and `blocked` exclude each other: keep one".into());
    }
    if spec.blocked {
        return Plan::Blocked;
    }
    if spec.unlimited {
        return Plan::Unlimited;
    }
    if spec.limits.is_empty() || spec.limits.len() > MAX_LIMITS {
        let seen = spec.limits.len();
        problem(
            None,
            format!("{seen} limits: write 1 to {MAX_LIMITS}, like limits = [\"100/1s\"], or unlimited = true"),
        );
    }
    let mut limits: Vec<Limit> = Vec::new();
    for (index, text) in spec.limits.iter().enumerate() {
        match Limit::parse(text) {
            Ok(limit) => limits.push(limit),
            Err(error @ (LimitError::Syntax { .. } | LimitError::Range { .. })) => {
                problem(Some(index), error.to_string())
            }
        }
    }
    if limits.len() > 1
        && let Some(index) = limits.iter().position(|limit| limit.algorithm == Algorithm::Concurrent)
    {
        let text = "a concurrent limit stands alone: give it a policy of its own, and ask both with RATION.MCHECK";
        problem(Some(index), text.into());
    }
    let can_be = can_be_entitled(&limits) || has_short_slots(&limits);
    if on_store_loss == OnStoreLoss::Entitled && !limits.is_empty() && !can_be {
        let text = "on_store_loss = \"entitled\" is for one bucket, or one `fixed`, `fixed from-first` or `sliding` limit with a window of at most 1m, of at \
                    most 67108864 tokens, or one `concurrent` limit whose slots end after at most 1m: write on_store_loss = \"share\"";
        problem(Some(0), text.into());
    }
    Plan::Limited(Arc::new(Rule { policy: policy.clone(), limits: limits.into(), on_store_loss }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(limits: &[&str]) -> PolicySpec {
        PolicySpec { limits: limits.iter().map(|&limit| limit.to_owned()).collect(), ..PolicySpec::default() }
    }

    #[test]
    fn reports_every_error_at_once() {
        let specs = BTreeMap::from([
            ("a".to_owned(), spec(&["1/1s", "x"])),
            ("b".to_owned(), PolicySpec { unlimited: true, ..spec(&["1/1s"]) }),
            ("c".to_owned(), spec(&[])),
        ]);
        let errors = PolicySet::compile(&specs).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert_eq!(errors[0].limit, Some(1));
    }

    #[test]
    fn ad_hoc_names_are_not_for_the_configuration() {
        for name in [AD_HOC, OVERRIDDEN] {
            assert!(PolicySet::compile(&BTreeMap::from([(name.to_owned(), spec(&["1/1s"]))])).is_err());
        }
    }

    #[test]
    fn override_replaces_the_limits_of_one_key() {
        let mut api = spec(&["1/1s"]);
        api.overrides.insert("acme".into(), spec(&["9/1s"]));
        api.overrides.insert("evil".into(), PolicySpec { blocked: true, ..PolicySpec::default() });
        let set = PolicySet::compile(&BTreeMap::from([("api".to_owned(), api)])).unwrap();
        let policy = set.get("api").unwrap();
        let Plan::Limited(rule) = policy.plan(b"acme") else { panic!("limited") };
        assert_eq!(rule.limits[0].count, 9);
        assert_eq!(policy.plan(b"evil"), &Plan::Blocked);
        assert_eq!(policy.plan(b"other"), &policy.plan);
    }

    #[test]
    fn shadow_never_denies_and_says_so() {
        let set =
            PolicySet::compile(&BTreeMap::from([("s".to_owned(), PolicySpec { shadow: true, ..spec(&["1/1s"]) })]));
        let policy = set.unwrap().get("s").unwrap().clone();
        let denied = Plan::Blocked.fixed_decision().unwrap();
        let seen = policy.enforced(Digest(7), denied);
        assert_eq!((seen.verdict, seen.reason), (Verdict::Allow, Reason::Shadow));
    }

    #[test]
    fn a_percentage_is_one_of_keys_by_the_first_half_of_their_digests() {
        let part = PolicySpec { enforce: Some(25), ..spec(&["1/1s"]) };
        let policy = PolicySet::compile(&BTreeMap::from([("p".to_owned(), part)])).unwrap().get("p").unwrap().clone();
        let digests = (0..10_000_u64).map(|key| Digest::of("p", &key.to_le_bytes()));
        let enforced = digests.filter(|digest| {
            let is_enforced = policy.is_enforced_for(*digest);
            assert_eq!(is_enforced, policy.is_enforced_for(Digest(digest.0 ^ u128::from(u64::MAX))));
            is_enforced
        });
        let count = enforced.count();
        assert!((2_300..2_700).contains(&count), "{count}");
    }
}
