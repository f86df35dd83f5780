//! One key whose tokens are leased from the store.
//!
//! Inputs change what is known of a key, and [`advance`](advance::advance) does what follows from that. It alone sends calls to the
//! store, asks of peers, and answers to those who wait: an input hands it a [`Wish`](wish::Wish). A request, an answer and a timer
//! differ in what they change, but not in what is done afterwards. The [`glossary`](crate::glossary)
//! has the words: lease, acquire, account, share, owner, loan, entitlement. Files import downwards only:
//!
//! | file | what |
//! |---|---|
//! | `requests.rs` | what is asked of the key: checks, looks, refunds, resets |
//! | `lending.rs` | what peers ask for, and what comes of an ask of a peer |
//! | `outcomes.rs` | what an answer of the store, or its absence, changes |
//! | `reporting.rs` | what is reported to peers in a round of gossip, and to which of them |
//! | `keeping.rs` | for how long the key is kept: its timer, the node that leaves, the key that makes room |
//! | `advance.rs` | what the key does: the only file from which calls, asks and replies leave |
//! | `wish.rs` | what an input wishes of it |
//! | `intent.rs` | what it wants of the store, and why |
//! | `surplus.rs` | what it hands back because others need it more |
//! | `timers.rs` | when it must be looked at again |
//! | `account.rs` | what a call tells the store of this node's tokens, and how much it may ask for |
//! | `loans.rs` | what a peer is lent |
//! | `aside.rs` | what is set aside for this node, and what of it peers are lent |
//! | `opened.rs` | the same of windows that open with the first request |
//! | `outage.rs` | its part of the store is away, or has lost what it knew |
//! | `peers.rs` | what is reported to peers, and what their reports change |
//! | `reckoning.rs` | the numbers of its decisions |
//! | `key.rs` | the key itself, and its decisions from memory |
//!
//! A key has twelve parts. Each owns its fields: they are private to the part's file, and change by methods that say
//! what has happened. A part knows no other part and not the key, but for `phase.rs`, which keeps `bank.rs` and
//! `entitlement.rs`, and `store_view.rs`, which keeps a `limit_view.rs` for each limit; only `calls.rs` knows the driver, to which it
//! sends. `rare.rs` is where the parts lie that few keys have at a time: `line`, `calls`, `phase`, `bank`, `peer_usage`, `entitlement`,
//! `leaving`, and all of `pacing` but one time.
//!
//! | part | what |
//! |---|---|
//! | `store_view.rs` | what is known of the store |
//! | `holdings.rs` | the tokens that are here |
//! | `leaving.rs` | the tokens that are about to be returned |
//! | `demand.rs` | how much is wanted |
//! | `core/line.rs` | the checks that wait for tokens |
//! | `calls.rs` | what is under way to the store, and who waits for it |
//! | `phase.rs` | an outage: how the store is doing, and what was admitted without it |
//! | `bank.rs` | how much is wanted without the store, and which peers have nothing to lend |
//! | `peer_usage.rs` | what this node and its peers did in the latest windows |
//! | `entitlement.rs` | what the store has set aside for this node |
//! | `pacing.rs` | when the store is asked though nobody waits |

mod account;
mod advance;
mod aside;
mod bank;
mod calls;
mod demand;
mod entitlement;
mod holdings;
mod intent;
mod keeping;
mod key;
mod leaving;
mod lending;
mod limit_view;
mod loans;
mod opened;
mod outage;
mod outcomes;
mod pacing;
mod peer_usage;
mod peers;
mod phase;
mod rare;
mod reckoning;
mod reporting;
mod requests;
mod store_view;
mod surplus;
mod timers;
mod wish;

pub(super) use intent::owner;
pub(super) use keeping::{give_all_back, handle_timer, note_forgotten, part_with};
pub(super) use key::LeasedKey;
pub(super) use lending::{handle_answer, serve};
pub(super) use outcomes::handle_outcome;
pub(super) use reporting::report_usage;
pub(super) use requests::{check, give_back_charge, handle_usage, prefetch, refresh_under, reset, rollback, take_back};
pub(super) use timers::next_timeout;
