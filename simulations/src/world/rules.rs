//! Turns the limits of a plan into the rules of nodes.

use std::sync::Arc;

use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::{OnStoreLoss, Rule};

use crate::observe::Setting;
use crate::plan::{self, Plan};

/// The setting of a run, for its listeners.
///
/// # Errors
/// A limit that cannot be parsed, with its position.
pub fn setting(plan: &Plan) -> Result<Setting, String> {
    let mut rules = Vec::new();
    for (index, policy) in plan.policies.iter().enumerate() {
        rules.push(rule(index, policy).map_err(|error| format!("{}: policy {index}: {error}", plan.name))?);
    }
    let last = plan.demand.iter().map(|demand| demand.policy).max().unwrap_or(0) as usize;
    if last >= rules.len() {
        return Err(format!("{}: a demand asks for policy {last}, and there are {}", plan.name, rules.len()));
    }
    for demand in plan.demand.iter().filter(|demand| rules[demand.policy as usize].is_concurrent()) {
        if demand.refunds + demand.resets + demand.holds > 0 {
            return Err(format!("{}: a concurrent limit takes nothing back, as in the daemon", plan.name));
        }
    }
    Ok(Setting { plan: plan.clone(), rules })
}

pub(super) fn rule(index: usize, policy: &plan::Policy) -> Result<Arc<Rule>, String> {
    let limits = policy.limits.iter().map(|text| Limit::parse(text).map_err(|error| format!("`{text}`: {error}")));
    let limits = limits.collect::<Result<Vec<_>, _>>()?;
    if limits.len() > 1 && limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrent) {
        return Err("a concurrent limit beside others: wanted it alone, as the daemon does".into());
    }
    if limits.is_empty() {
        return Err("no limits".into());
    }
    let on_store_loss = match policy.on_store_loss {
        plan::OnStoreLoss::Share => OnStoreLoss::Share,
        plan::OnStoreLoss::Entitled => OnStoreLoss::Entitled,
        plan::OnStoreLoss::Allow => OnStoreLoss::Allow,
        plan::OnStoreLoss::Deny => OnStoreLoss::Deny,
    };
    Ok(Arc::new(Rule { policy: format!("p{index}").into(), limits: limits.into(), on_store_loss }))
}
