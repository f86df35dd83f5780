//! One key whose tokens are leased from the store. Files import downwards only:
//!
//! | file | what |
//! |---|---|
//! | `requests.rs` | what is asked of the key: checks, looks, refunds, resets |
//! | `outcomes.rs` | an answer of the store, or its absence |
//! | `upkeep.rs` | what time does to it |
//! | `refill.rs` | when to acquire, how much, and whom an answer serves |
//! | `errands.rs` | all other calls: peeks, refunds, resets, tokens handed back |
//! | `timers.rs` | when it must be looked at again |
//! | `view.rs`, `account.rs`, `order.rs` | what is known of the store, what it is told, what it may be asked for |
//! | `phase.rs`, `outage.rs`, `repair.rs` | its part of the store is away; the store has lost what it knew |
//! | `peers.rs` | what peers are told, and what is made of what they tell |
//! | `key.rs` | the key itself, and its decisions from memory |

mod account;
mod errands;
mod key;
mod order;
mod outage;
mod outcomes;
mod peers;
mod phase;
mod refill;
mod repair;
mod requests;
mod timers;
mod upkeep;
mod view;

pub(super) use key::LeasedKey;
pub(super) use outcomes::handle_outcome;
pub(super) use requests::{check, give_back_charge, handle_usage, prefetch, refresh_under, reset, rollback, take_back};
pub(super) use upkeep::{give_all_back, handle_timer, note_forgotten, part_with};
