//! Concurrent limits with `on_store_loss = "entitled"`: who has lost the store goes on within the slots that it was lent, and what all clients
//! have together is never more than the limit, whoever is cut off, late or killed.

use std::num::NonZeroU64;
use std::sync::Arc;

use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::policy::OnStoreLoss;
use rationd::core::shard::{Effect, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};

use crate::concurrent::{EPOCH, FAIR, SECOND, Weather, World};
use crate::support::random::below;

/// How long slots are lent.
const LEASE: u64 = 600 * SECOND;

fn world(limit: &str, nodes: usize, seed: u64, weather: Weather) -> World {
    let mut world = World::new(limit, nodes, seed, weather);
    Arc::get_mut(&mut world.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Entitled;
    assert!(world.rule.is_entitled_concurrent());
    world
}

/// How many checks in a row are admitted.
fn taken(world: &mut World, node: usize) -> usize {
    (0..1_000).take_while(|_| world.allowed(node)).count()
}

/// Another process takes the node's name; the clients of the one before go on. Returns until when they may.
fn restart(world: &mut World, node: usize) -> Vec<u64> {
    let settings = Settings { max_keys: 100, timeout: Micros(50_000), lease_ahead: true };
    let (now, id) = (world.now, EPOCH + world.now);
    world.nodes[node].shard = Shard::new(settings, id, id, 1, (Instant(now), Timestamp(EPOCH + now)));
    world.nodes[node].parked.clear();
    std::mem::take(&mut world.nodes[node].held).into_values().collect()
}

#[test]
fn a_node_without_the_store_gives_out_what_it_was_lent_and_nobody_else_is_lent_that() {
    let mut world = world("10/30s concurrent", 2, 3, FAIR);
    assert!((0..4).all(|_| world.allowed(0)));
    world.pass(5 * SECOND);
    world.nodes[0].is_cut = true;
    for _ in 0..5 {
        world.pass(60 * SECOND);
        assert_eq!(world.in_flight(), 0, "their time is over");
        let own = taken(&mut world, 0);
        let denied = world.check(0).expect("decided");
        assert_eq!((denied.verdict, denied.reason, denied.source), (Verdict::Deny, Reason::Share, Source::Share));
        let others = taken(&mut world, 1);
        assert!((4..10).contains(&own) && own + others == 10, "{own} and {others}");
    }
}

#[test]
fn no_slot_is_given_that_could_outlast_the_lease() {
    let mut world = world("10/30s concurrent", 2, 3, FAIR);
    assert!((0..4).all(|_| world.allowed(0)));
    world.nodes[0].is_cut = true;
    let drift = LEASE / 5_000;
    world.run(LEASE - drift - 31 * SECOND);
    assert!(world.allowed(0));
    world.run(LEASE - drift - 30 * SECOND);
    assert!(!world.allowed(0), "a client could have it when others are lent it");
    world.run(LEASE + SECOND);
    assert_eq!((world.in_flight(), taken(&mut world, 1)), (0, 10), "all of it");
    world.nodes[0].is_cut = false;
    world.pass(SECOND);
    assert!(!world.allowed(0));
}

/// A slow store executes a call when its node has long given it up. By then more slots are in use than the call says.
#[test]
fn a_call_that_is_executed_late_takes_nothing_that_was_given_out_meanwhile() {
    let mut world = world("10/30s concurrent", 2, 3, FAIR);
    assert!((0..10).all(|_| world.allowed(0)));
    (0..7).for_each(|_| world.release_one(0));
    world.run(world.now);
    // Its next call, which hands back what is idle, is held up on its way.
    let late = loop {
        let at = world.nodes[0].shard.poll_timeout().expect("something is due");
        world.now = at.0;
        world.nodes[0].shard.handle_timeout(at);
        if let Some(Effect::Call(call)) = world.nodes[0].shard.poll_effect() {
            break *call;
        }
    };
    world.nodes[0].shard.handle_outcome(
        Instant(world.now),
        &late,
        Err(rationd::core::call::StoreError::Away { since: Instant(world.now) }),
    );
    world.nodes[0].is_cut = true;
    world.drain(0);
    let own = 3 + taken(&mut world, 0);
    let answer = world.store.call(Timestamp(EPOCH + world.now), "node-0", &late).expect("an answer");
    assert!(answer.granted >= own as u64, "{} of {own}", answer.granted);
    assert_eq!(own + taken(&mut world, 1), 10);
}

#[test]
fn another_process_under_the_name_counts_the_slots_of_the_one_before_until_their_time_is_over() {
    let mut world = world("10/30s concurrent", 2, 3, FAIR);
    assert!((0..6).all(|_| world.allowed(0)));
    world.pass(20 * SECOND);
    let before = restart(&mut world, 0).len();
    let all = taken(&mut world, 0) + taken(&mut world, 1) + before;
    assert!(all == 9 || all == 10, "one may have been spare: {all}");
    world.pass(10 * SECOND + 1);
    assert_eq!(world.in_flight(), all - before, "those of the process before are over");
    assert_eq!(taken(&mut world, 0) + taken(&mut world, 1), 0, "and it does not know that");
    world.pass(30 * SECOND);
    assert_eq!(world.in_flight(), 0);
    assert_eq!(taken(&mut world, 0) + taken(&mut world, 1), 10);
}

#[test]
fn what_is_handed_back_is_handed_back_again_if_the_call_was_lost() {
    let mut world = world("10/2s concurrent", 2, 3, FAIR);
    assert!((0..8).all(|_| world.allowed(0)));
    world.nodes[0].is_cut = true;
    world.pass(20 * SECOND);
    assert!(taken(&mut world, 1) <= 2, "the other has the rest");
    world.pass(5 * SECOND);
    world.nodes[0].is_cut = false;
    world.pass(8 * SECOND);
    assert_eq!(taken(&mut world, 1), 10);
}

#[test]
fn who_leaves_keeps_what_its_clients_have_for_no_longer_than_they_may() {
    let mut world = world("10/30s concurrent", 2, 3, FAIR);
    assert!((0..8).all(|_| world.allowed(0)));
    world.nodes[0].shard.handle_drain(Instant(world.now));
    world.drain(0);
    world.run(world.now);
    drop(restart(&mut world, 0));
    assert_eq!(taken(&mut world, 1), 2);
    world.pass(31 * SECOND);
    assert_eq!(taken(&mut world, 1), 10);
}

#[test]
fn idle_keys_make_few_calls_while_the_store_is_away() {
    let mut world = world("10/2s concurrent", 1, 3, FAIR);
    assert!((0..4).all(|_| world.allowed(0)));
    world.nodes[0].is_cut = true;
    world.pass(10 * SECOND);
    let before = world.calls;
    world.pass(60 * SECOND);
    assert!(world.calls - before < 20, "{}", world.calls - before);
}

/// Cuts, lost and late and repeated messages, and processes that are killed and come back, all at once.
#[test]
fn the_bound_holds_whoever_is_cut_off_or_killed() {
    for seed in 0..60 {
        let weather = Weather { delay: 300 + seed % 7 * 900, loss: seed % 4 * 40, repeats: seed % 3 * 60 };
        let limit = 1 + seed % 13;
        let mut world = world(&format!("{limit}/3s concurrent"), 4, seed, weather);
        let mut before = Vec::new();
        for _ in 0..2_000 {
            let node = below(&mut world.random, 4) as usize;
            let slots: Vec<NonZeroU64> = world.nodes[node].held.keys().copied().collect();
            match below(&mut world.random, 200) {
                0 => before.extend(restart(&mut world, node)),
                1..=4 => world.nodes[node].is_cut ^= true,
                5..100 if !slots.is_empty() => {
                    let slot = slots[below(&mut world.random, slots.len() as u64) as usize];
                    world.release(node, slot);
                }
                _ => _ = world.check(node),
            }
            let step = below(&mut world.random, 8_000);
            world.pass(step);
            world.nodes.iter_mut().for_each(|node| node.answers.clear());
            before.retain(|ends| *ends > world.now);
            let out = world.in_flight() + before.len();
            assert!(out as u64 <= limit, "seed {seed}: {out} of {limit}");
        }
        // Everything ends, and all of it is there for one.
        world.weather = FAIR;
        world.nodes.iter_mut().for_each(|node| node.is_cut = false);
        for node in 0..4 {
            world.check(node);
        }
        world.pass(20 * SECOND);
        world.nodes.iter_mut().for_each(|node| node.answers.clear());
        let allowed = (0..limit + 3).filter(|_| world.allowed(2)).count();
        assert_eq!(allowed as u64, limit, "seed {seed}");
    }
}
