//! What each command does, what time does, and what a failover undoes.

use super::*;

/// The server's clock: a whole second.
const NOW: u64 = 1_800_000_000_000_000;

fn run(keyspace: &mut Keyspace, now: u64, line: &str) -> Reply {
    let words: Vec<&str> = line.split(' ').collect();
    keyspace.begin(now);
    keyspace.execute(words[0].as_bytes(), words[1], &words[2..])
}

fn strings(list: &[Option<&str>]) -> Reply {
    Reply::Strings(list.iter().map(|text| text.map(|text| text.as_bytes().into())).collect())
}

#[test]
fn hash_lives_as_long_as_it_has_fields() {
    let mut keyspace = Keyspace::default();
    assert_eq!(run(&mut keyspace, NOW, "HSET k b 1 a 2 b 3"), Reply::Integer(2));
    assert_eq!(run(&mut keyspace, NOW, "HMGET k a b c"), strings(&[Some("2"), Some("3"), None]));
    assert_eq!(run(&mut keyspace, NOW, "HKEYS k"), strings(&[Some("a"), Some("b")]));
    assert_eq!(run(&mut keyspace, NOW, "HLEN k"), Reply::Integer(2));
    assert_eq!(run(&mut keyspace, NOW, "HDEL k a b c"), Reply::Integer(2));
    assert_eq!(keyspace.keys().count(), 0);
    assert_eq!(run(&mut keyspace, NOW, "PEXPIRE k 5"), Reply::Integer(0));
}

#[test]
fn key_that_is_handed_over_lives_as_long_by_the_other_clock() {
    let (mut keyspace, mut other) = (Keyspace::default(), Keyspace::default());
    run(&mut keyspace, NOW, "HSET k a 1");
    run(&mut keyspace, NOW, "PEXPIRE k 5000");
    let (leaves, arrives) = (NOW + 1_000_000, NOW - 60_000_000);
    let entry = keyspace.take("k").expect("it was set");
    other.put("k".into(), entry.handed_over(leaves, arrives));
    assert_eq!(run(&mut other, arrives + 4_000_000, "HLEN k"), Reply::Integer(1));
    assert_eq!(run(&mut other, arrives + 4_001_000, "HLEN k"), Reply::Integer(0));
}

#[test]
fn key_is_there_up_to_its_last_millisecond() {
    let mut keyspace = Keyspace::default();
    run(&mut keyspace, NOW, "HSET k a 1");
    assert_eq!(run(&mut keyspace, NOW + 999, "PEXPIRE k 2"), Reply::Integer(1));
    assert_eq!(run(&mut keyspace, NOW + 2_999, "HLEN k"), Reply::Integer(1));
    assert_eq!(run(&mut keyspace, NOW + 3_000, "HLEN k"), Reply::Integer(0));
    assert_eq!(keyspace.keys().count(), 0);
}

#[test]
fn expiry_that_is_not_ahead_deletes() {
    for span in ["0", "-1", "-9223372036854775808"] {
        let mut keyspace = Keyspace::default();
        run(&mut keyspace, NOW, "HSET k a 1");
        assert_eq!(run(&mut keyspace, NOW, &format!("PEXPIRE k {span}")), Reply::Integer(1));
        assert!(keyspace.get("k").is_none());
    }
    for span in ["+1", "01", "1.0", "x", "9223372036854775807"] {
        let reply = run(&mut Keyspace::default(), NOW, &format!("PEXPIRE k {span}"));
        assert!(matches!(reply, Reply::Error(_)), "{span}");
    }
}

#[test]
fn string_is_the_wrong_type_and_can_be_deleted() {
    let mut keyspace = Keyspace::default();
    keyspace.set_string("k", b"x");
    for line in ["HMGET k a", "HSET k a 1", "HDEL k a", "HKEYS k", "HLEN k"] {
        assert_eq!(run(&mut keyspace, NOW, line), error(WRONG_TYPE), "{line}");
    }
    assert_eq!(run(&mut keyspace, NOW, "DEL k"), Reply::Integer(1));
    assert_eq!(run(&mut keyspace, NOW, "HSET k a 1"), Reply::Integer(1));
}

#[test]
fn unknown_command_is_an_error() {
    for line in ["HINCRBY k a 1", "HMGET k", "HSET k a", "PEXPIRE k 1 NX", "DEL k l"] {
        assert!(matches!(run(&mut Keyspace::default(), NOW, line), Reply::Error(_)), "{line}");
    }
}

#[test]
fn failover_puts_back_what_was() {
    let mut keyspace = Keyspace::default();
    run(&mut keyspace, NOW, "HSET old a 1");
    run(&mut keyspace, NOW, "PEXPIRE old 5");
    let before = keyspace.clone();
    run(&mut keyspace, NOW + 1, "HSET old a 2 b 2");
    run(&mut keyspace, NOW + 2, "HSET new a 1");
    run(&mut keyspace, NOW + 9_000, "HSET old c 3"); // the old one had expired
    assert_eq!(keyspace.undo_after(NOW), ["new", "old"].map(Key::from));
    assert_eq!(keyspace.entries, before.entries);
    assert!(keyspace.undo_after(NOW).is_empty());
}

#[test]
fn every_write_is_undone_one_after_the_other() {
    let (mut keyspace, mut before, mut random) = (Keyspace::default(), vec![BTreeMap::new()], 1_u64);
    for at in 1..=400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, field, other) = (random >> 33 & 1, random >> 40 & 7, random >> 50 & 7);
        let line = match random >> 60 {
            0 => format!("DEL {key}"),
            1..=3 => format!("HDEL {key} {field} {other}"),
            4 => format!("PEXPIRE {key} {field}"),
            _ => format!("HSET {key} {field} {at} {other} {at} {field} x"),
        };
        run(&mut keyspace, NOW + at * 500, &line);
        before.push(keyspace.entries.clone());
    }
    for at in (0..400).rev() {
        keyspace.undo_after(NOW + at * 500);
        assert_eq!(keyspace.entries, before[at as usize], "after write {at}");
    }
}

#[test]
fn what_is_settled_is_not_undone() {
    let mut keyspace = Keyspace::default();
    run(&mut keyspace, NOW, "HSET k a 1");
    run(&mut keyspace, NOW, "PEXPIRE k 9");
    keyspace.settle_before(NOW);
    assert!(keyspace.journal.is_empty() && keyspace.undo_after(0).is_empty());
}

#[test]
fn what_the_world_did_is_not_undone() {
    let mut keyspace = Keyspace::default();
    for key in ["moved", "evicted"] {
        run(&mut keyspace, NOW, &format!("HSET {key} a 1"));
    }
    let mut other = Keyspace::default();
    let entry = keyspace.take("moved").unwrap();
    assert_eq!(entry.fields().collect::<Vec<_>>(), [(&b"a"[..], &b"1"[..])]);
    other.put("moved".into(), entry);
    assert!(keyspace.evict("evicted"));
    assert!(keyspace.undo_after(0).is_empty() && keyspace.keys().count() == 0);
    assert!(other.undo_after(0).is_empty() && other.keys().count() == 1);
    assert_eq!(other.flush(), ["moved"].map(Key::from));
}
