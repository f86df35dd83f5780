//! What must hold in every run, whatever goes wrong: one checker an invariant, apart from the
//! workloads, and each able to fail (its tests feed it a history that does).
//!
//! | checker | invariant |
//! |---|---|
//! | `bound.rs` | **bound**, per algorithm, with what the README excepts and no more |
//! | `joint.rs` | **bound** of leases and shares together |
//! | `shares.rs` | **static-shares**: while the store is away all nodes together stay below 95 % |
//! | `fleet.rs` | **static-shares** of all nodes that hear of each other, **prefilter**: nobody is denied by peers for nothing |
//! | `entitled.rs` | **entitled**: what the store sets aside for nodes that may lose it |
//! | `books.rs`, `lease_conservation.rs`, `store.rs`, `bucket.rs` | **conservation**: of a node, of a key, of the store; **bounded** |
//! | `tally.rs` | **conservation**: what stands charged is counted, window by window |
//! | `refunds.rs` | **conservation** of what clients take back |
//! | `holds.rs` | **conservation**, **at-most-once** of holds that are settled |
//! | `claims.rs` | **no-free-budget**: what nodes tell the store of themselves is so |
//! | `repair.rs` | **no-free-budget**: who brings back what a store lost is lent nothing yet |
//! | `fairness.rs` | **fairness**: nobody takes more than its part; **confirmed** |
//! | `early.rs` | **early**: nobody is denied while little was asked for |
//! | `plenty.rs` | **plenty**: nobody is denied by an answer that says that there is enough |
//! | `flights.rs` | **single-flight**: a key is asked for by one acquire at a time |
//! | `landing.rs` | **landing**: what the store lends is held |
//! | `lending.rs` | **lending**: who lends on to a peer, and who asks |
//! | `telling.rs` | **gossip**: what peers are told was admitted |
//! | `turns.rs` | **turns**: of more keys than a round of gossip has room for each has its turn |
//! | `reporting.rs` | **reported**: what was spent of a bucket the store hears in time |
//! | `thrift.rs` | **thrift**: a denial costs no call |
//! | `replies.rs` | **answered**, **line** |
//! | `ids.rs` | **at-most-once** |
//! | `truth.rs`, `remaining.rs`, `left.rs` | **truth**: numbers, reset_at, evidence of a denial |
//! | `honest.rs` | **honest**: who waits as told is admitted |
//! | `second_opinion.rs` | **second-opinion**: the memory store answers and counts as the scripts do |
//! | `several.rs` | **all-or-nothing** of several keys at once |
//! | `permits.rs` | **bound**, **conservation**, **plenty** of concurrent limits |
//! | `liveness.rs` | **liveness**: after everything healed leases flow and the limit is used; **livelock** |

mod asking;
mod books;
mod bound;
mod bucket;
mod claims;
mod early;
mod entitled;
mod fairness;
mod fleet;
mod flights;
mod flow;
mod holds;
mod honest;
mod ideal;
mod ids;
mod joint;
mod landing;
mod lease_conservation;
mod left;
mod lending;
mod liveness;
mod needless;
mod notes;
mod permits;
mod phased;
mod plenty;
mod reach;
mod refunds;
mod remaining;
mod repair;
mod replies;
mod reporting;
mod second_opinion;
mod several;
mod shares;
mod sheet;
mod store;
mod tally;
mod telling;
#[cfg(test)]
mod tests;
mod thrift;
mod truth;
mod turns;
mod window;

use rationd::core::call::{Call, Grant};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

pub use self::sheet::{Exemption, Sheet};
use crate::observe::{Checker, Moment, Ran, Setting, Violation};
use crate::plan::{Plan, What};

/// The counters as the store keeps them. In an answer tokens set aside for others are shown as used, although they were
/// lent to none; scripts of the previous build set nothing aside.
fn counted(call: &Call, grant: &Grant, ran: &Ran) -> Grant {
    let mut grant = *grant;
    if let (true, Some(hash)) = (call.sets_aside() && !ran.is_earlier, &ran.hash[1]) {
        grant.counters[0] = hash.counted(&call.rule.limits[0], grant.now, grant.counters[0]);
    }
    grant
}

/// Clocks that differ by no more than a script takes count as the same.
const SAME: u64 = 1_000;

/// Whether limits change.
fn has_pushes(plan: &Plan) -> bool {
    plan.faults.iter().any(|fault| matches!(fault.what, What::Push { .. }))
}

/// The longest of most trips to the store and back: a node knows the store's clock to within one.
fn trip(plan: &Plan) -> u64 {
    2 * (plan.network.latency.0 + 3 * plan.network.jitter.0)
}

/// How many violations one checker keeps.
const KEPT: usize = 8;

/// All checkers.
#[must_use]
pub fn all(setting: &Setting) -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(bound::Bound::new(setting)),
        Box::new(joint::Joint::new(setting)),
        Box::new(shares::Shares::new(setting)),
        Box::new(fleet::FleetShares::phased(setting)),
        Box::new(entitled::Entitled::phased(setting)),
        Box::new(books::Books::new(setting)),
        Box::new(lease_conservation::LeaseConservation::new(setting)),
        Box::new(store::Store::phased(setting)),
        Box::new(bucket::Bucket::phased(setting)),
        Box::new(tally::Tally::phased(setting)),
        Box::new(refunds::Refunds::new(setting)),
        Box::new(holds::Holds::new(setting)),
        Box::new(claims::Claims::phased(setting)),
        Box::new(repair::Repair::phased(setting)),
        Box::new(fairness::Fairness::phased(setting)),
        Box::new(early::Early::new(setting)),
        Box::new(plenty::Plenty::new(setting)),
        Box::new(flights::Flights::new(setting)),
        Box::new(lending::Lending::new(setting)),
        Box::new(asking::Asking::new(setting)),
        Box::new(telling::Telling::phased(setting)),
        Box::new(turns::Turns::phased(setting)),
        Box::new(reporting::Reporting::new(setting)),
        Box::new(landing::Landing::phased(setting)),
        Box::new(thrift::Thrift::new(setting)),
        Box::new(replies::Replies::new(setting)),
        Box::new(ids::Ids::default()),
        Box::new(truth::Truth::new(setting)),
        Box::new(remaining::Remaining::phased(setting)),
        Box::new(left::Left::phased(setting)),
        Box::new(honest::Honest::new(setting)),
        Box::new(liveness::Liveness::new(setting)),
        Box::new(needless::Needless::new(setting)),
        Box::new(second_opinion::SecondOpinion::default()),
        Box::new(permits::Permits::new(setting)),
        Box::new(several::SeveralKeys::new(setting)),
    ]
}

/// The sheets of all checkers, in the same order.
#[must_use]
pub fn sheets() -> [&'static Sheet; 36] {
    [
        &bound::SHEET,
        &joint::SHEET,
        &shares::SHEET,
        &fleet::SHEET,
        &entitled::SHEET,
        &books::SHEET,
        &lease_conservation::SHEET,
        &store::SHEET,
        &bucket::SHEET,
        &tally::SHEET,
        &refunds::SHEET,
        &holds::SHEET,
        &claims::SHEET,
        &repair::SHEET,
        &fairness::SHEET,
        &early::SHEET,
        &plenty::SHEET,
        &flights::SHEET,
        &lending::SHEET,
        &asking::SHEET,
        &telling::SHEET,
        &turns::SHEET,
        &reporting::SHEET,
        &landing::SHEET,
        &thrift::SHEET,
        &replies::SHEET,
        &ids::SHEET,
        &truth::SHEET,
        &remaining::SHEET,
        &left::SHEET,
        &honest::SHEET,
        &liveness::SHEET,
        &needless::SHEET,
        &second_opinion::SHEET,
        &permits::SHEET,
        &several::SHEET,
    ]
}

/// The one limit of a rule, if it is an aligned window.
fn aligned(rule: &Rule) -> Option<&Limit> {
    let [limit] = &rule.limits[..] else { return None };
    (limit.algorithm == Algorithm::Fixed).then_some(limit)
}

/// What a checker found.
#[derive(Clone, Debug, Default)]
struct Found {
    list: Vec<Violation>,
}

impl Found {
    fn add(&mut self, invariant: &'static str, moment: Moment, what: impl FnOnce() -> String) {
        if self.list.len() < KEPT {
            self.list.push(Violation { invariant, by: "", at: moment.at, what: what() });
        }
    }
}
