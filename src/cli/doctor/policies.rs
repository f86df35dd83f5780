//! Checks whether limits are large enough for the costs that applications ask for, and for the number of nodes.

use super::check::{Check, Look};
use super::patient::Patient;
use crate::core::limit::{Algorithm, Limit};
use crate::core::policy::Plan;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "policies.burst",
        why: "A cost beyond what a limit ever holds is always denied, with reason `cost`.",
        next: "Raise burst (of windows: count) to the largest cost; --cost says which that is.",
        see: "concepts/algorithms.md#gcra",
        look: burst,
    },
    Check {
        id: "policies.nodes",
        why: "With fewer tokens than nodes, some nodes have none to lend: keys wait for the store, and in an outage some \
              nodes' share is nothing.",
        next: "Write a longer period with a larger count, like 600/1m for 10/1s; --nodes says how many there will be.",
        see: "concepts/leases.md#what-it-costs-and-what-it-saves",
        look: nodes,
    },
    Check {
        id: "policies.store-loss",
        why: "While the store is away such a policy limits nothing, or lets nothing pass.",
        next: "Leave on_store_loss = \"share\", unless that is meant.",
        see: "concepts/outages.md#what-happens-then",
        look: store_loss,
    },
];

/// The names of the limits that are too small, in policies and in their overrides.
fn too_small(patient: &Patient, is: impl Fn(&Limit) -> bool) -> Option<Vec<String>> {
    let (loaded, _) = patient.loaded.as_ref().ok()?;
    let mut found = Vec::new();
    for policy in loaded.policies.iter() {
        let own = std::iter::once((None, &policy.plan));
        for (name, plan) in own.chain(policy.overrides.iter().map(|(name, plan)| (Some(name), plan))) {
            let Plan::Limited(rule) = plan else { continue };
            let of = name.map_or_else(|| policy.name.to_string(), |name| format!("{} of {name:?}", policy.name));
            found.extend(rule.limits.iter().filter(|limit| is(limit)).map(|limit| format!("{of}: {limit}")));
        }
    }
    Some(found)
}

fn burst(patient: &Patient) -> Look {
    let cost = patient.cost;
    // A concurrent limit takes one permit per check, whatever the cost.
    let small = |limit: &Limit| limit.capacity() < cost && limit.algorithm != Algorithm::Concurrent;
    let Some(found) = too_small(patient, small) else { return Look::Apart };
    Look::none_of(found, Look::Warning, format!("each holds a cost of {cost}"))
}

fn nodes(patient: &Patient) -> Look {
    let nodes = patient.nodes();
    let shared = patient.config().is_some_and(|config| config.store.url != "memory:");
    if !shared || nodes < 2 {
        return Look::Apart;
    }
    let Some(found) = too_small(patient, |limit| limit.capacity() < nodes) else { return Look::Apart };
    Look::none_of(found, Look::Warning, format!("each has a token for each of {nodes} nodes"))
}

fn store_loss(patient: &Patient) -> Look {
    use crate::core::policy::OnStoreLoss;
    let Ok((loaded, resolved)) = &patient.loaded else { return Look::Apart };
    if resolved.store.is_none() {
        return Look::Apart;
    }
    let findings = loaded.policies.iter().filter_map(|policy| match &policy.plan {
        Plan::Limited(rule) if rule.on_store_loss == OnStoreLoss::Allow => {
            Some(format!("{} limits nothing", policy.name))
        }
        Plan::Limited(rule) if rule.on_store_loss == OnStoreLoss::Deny => Some(format!("{} denies all", policy.name)),
        _ => None,
    });
    Look::none_of(findings.collect(), Look::Warning, "each goes on within its share")
}
