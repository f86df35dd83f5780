//! Tests of this room.

use std::collections::HashMap;
use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, PartialEq)]
struct Item {
    digest: u128,
    value: NonZeroU64,
    rest: [u64; 5],
}

impl Keyed for Item {
    fn digest(&self) -> u128 {
        self.digest
    }
}

fn item(digest: u128, value: u64) -> Item {
    Item { digest, value: NonZeroU64::MIN.saturating_add(value), rest: [0; 5] }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u128, u64),
    Remove(u128),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few digests, so that removals hit; with a zero half, so that many of them collide.
    let digest = (0..120u128, any::<bool>()).prop_map(|(n, high)| if high { n << 64 } else { n << 64 | n });
    let step = (digest, 0..3u8, any::<u64>())
        .prop_map(|(digest, kind, value)| if kind == 0 { Step::Remove(digest) } else { Step::Insert(digest, value) });
    prop::collection::vec(step, 0..600)
}

proptest! {
    #[test]
    fn table_equals_a_hash_map(steps in steps(), max in 1..150usize, secret in any::<u128>()) {
        // The second secret makes all digests with a zero half collide in one place.
        for secret in [secret, 0xe703_7ed1_a0b4_28db_a076_1d64_78bd_642f] {
            let (mut table, mut model) = (Table::new(max, secret), HashMap::new());
            for step in &steps {
                match *step {
                    Step::Insert(digest, value) if !model.contains_key(&digest) => {
                        let full = model.len() == max;
                        match table.insert(item(digest, value)) {
                            Ok(slot) => { model.insert(digest, (slot, value)); }
                            Err(Full) => prop_assert!(full),
                        }
                        prop_assert!(model.len() <= max);
                    }
                    Step::Insert(digest, value) => {
                        let slot = table.find(digest).expect("held");
                        table[slot] = item(digest, value);
                        model.insert(digest, (slot, value));
                    }
                    Step::Remove(digest) => {
                        let found = table.find(digest);
                        prop_assert_eq!(found, model.get(&digest).map(|(slot, _)| *slot));
                        if let Some(slot) = found {
                            let (_, value) = model.remove(&digest).expect("found");
                            prop_assert_eq!(table.remove(slot), item(digest, value));
                        }
                    }
                }
            }
            prop_assert_eq!(table.len(), model.len());
            prop_assert_eq!(table.iter().count(), model.len());
            for (digest, (slot, value)) in model {
                prop_assert_eq!(table.find(digest), Some(slot));
                prop_assert_eq!(&table[slot], &item(digest, value));
            }
        }
    }
}

fn scattered(n: u64) -> u128 {
    u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n.wrapping_mul(0xd134_2543_de82_ef95))
}

#[test]
fn index_takes_at_most_eight_and_a_half_bytes_a_key() {
    let mut table = Table::new(1 << 20, 0x1234_5678_9abc_def0_0fed_cba9_8765_4321);
    let mut worst = 0.0_f64;
    for n in 0..300_000 {
        table.insert(item(scattered(n), n)).unwrap();
        if n > 1_000 {
            worst = worst.max((table.index.len() * size_of::<u32>()) as f64 / table.len() as f64);
        }
    }
    assert!((4.5..=8.5).contains(&worst), "{worst} bytes");
    assert_eq!(size_of::<Option<Item>>(), 64);
    let all = table.bytes() as f64 / table.len() as f64;
    assert!((68.5..=72.5).contains(&all), "{all} bytes");
}

#[test]
fn a_walk_may_begin_at_any_slot() {
    let mut table = Table::new(10_000, 7);
    for n in 0..1_000 {
        table.insert(item(scattered(n), n)).unwrap();
    }
    for slot in (0..1_000).step_by(7) {
        table.remove(slot);
    }
    let all: Vec<_> = table.iter().map(|(slot, _)| slot).collect();
    for first in [0, 1, 255, 256, 257, 700, 999, 1_000, 1_024, u32::MAX] {
        let walked: Vec<_> = table.iter_from(first).map(|(slot, _)| slot).collect();
        assert!(walked.iter().copied().eq(all.iter().copied().filter(|slot| *slot >= first)), "from {first}");
    }
}

#[test]
fn handles_survive_growth_and_slots_are_used_again() {
    let mut table = Table::new(10_000, 7);
    let first = table.insert(item(1, 1)).unwrap();
    let gone = table.insert(item(2, 2)).unwrap();
    table.remove(gone);
    assert_eq!(table.insert(item(3, 3)), Ok(gone));
    for n in 4..5_000 {
        table.insert(item(scattered(n), n)).unwrap();
    }
    assert_eq!(table[first], item(1, 1));
    assert_eq!(table.find(2), None);
    assert_eq!(table.get(gone), Some(&item(3, 3)));
}

#[test]
fn hand_sees_every_item_once_a_turn() {
    let mut table = Table::new(1_000, 7);
    for n in 0..600 {
        table.insert(item(scattered(n), n)).unwrap();
    }
    for slot in (0..600).step_by(3) {
        table.remove(slot);
    }
    let mut seen: Vec<_> = (0..table.slots()).filter_map(|_| table.step()).collect();
    assert_eq!(seen.len(), 400);
    seen.dedup();
    assert_eq!(seen.len(), 400);
    assert_eq!(table.step(), None, "slot 0 was removed");
}

#[test]
fn full_table_refuses_and_takes_again_after_a_removal() {
    let mut table = Table::new(2, 7);
    let slot = table.insert(item(1, 1)).unwrap();
    table.insert(item(2, 2)).unwrap();
    assert_eq!(table.insert(item(3, 3)), Err(Full));
    table.remove(slot);
    assert!(table.insert(item(3, 3)).is_ok());
}
