//! What the tests share: a bench and worlds for the core alone; a daemon in this process; for real
//! processes a clock and bounded waits, daemons and stores that die with their test, a RESP client,
//! demand, and the ledger of what clients saw; for fleets CAs, nodes, what daemons see of each other, and
//! one suite over every carrier; what lies in deploy/, and a backend for it; what the reference pages say.

#![allow(unreachable_pub, missing_docs, reason = "the tests of this repository alone see it")]

pub mod behaviour;
pub mod bench;
pub mod calls;
pub mod clock;
pub mod cloud;
pub mod cluster;
pub mod daemon;
pub mod demand;
pub mod deployed;
pub mod earlier;
pub mod envoy;
pub mod ether;
pub mod far;
pub mod fleet;
pub mod forge;
pub mod formula;
pub mod fresh;
pub mod goals;
pub mod imports;
pub mod in_memory;
pub mod installed;
pub mod judge;
pub mod ledger;
pub mod load;
pub mod lone;
pub mod matrix;
pub mod membership_suite;
pub mod memory;
pub mod metrics;
pub mod namespaces;
pub mod opinion;
pub mod peers;
pub mod pipe;
pub mod poll;
pub mod process;
pub mod proxy;
pub mod random;
pub mod redis_server;
pub mod reference;
pub mod resp;
pub mod run;
pub mod seeded;
pub mod sequences;
pub mod served;
pub mod server;
pub mod skip;
pub mod store_suite;
pub mod web;
pub mod world;
