//! What no daemon does: lost keys, damaged values, other types, arguments of another version.

use rationd::core::policy::Rule;
use rationd::store::script::WIDTH;

use crate::calls::Random;
use crate::pair::Pair;

/// Values that no script writes, and some that one does.
const VALUES: [&[u8]; 25] = [
    b"",
    b" ",
    b"x",
    b"0",
    b"1",
    b"-1",
    b"007",
    b"1.5",
    b"1e3",
    b"nan",
    b"0x10",
    b"9007199254740991",
    b"9007199254740992",
    b"99999999999999999",
    b"1 2",
    b"1 2 3",
    b" 1  2   3 ",
    b"4294967295 4294967295 0",
    b"4294967296 0 0",
    b"999999 4294967295 9007199254740991",
    b"9007199254740991 9007199254740991 9007199254740991 9007199254740991",
    b"1 2 3 4 5 6 7 8 9 10 11 12 13",
    b"1\t2\t3",
    b"1 \xff 3",
    b"1 2 3\0",
];

/// Arguments that are wrong, or right in another place.
const ARGUMENTS: [&[u8]; 16] = [
    b"",
    b"0",
    b"\0\0\0\0\0\0\0",
    b"\x01\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\0\0\0",
    b"\0\0\0\0\x01\0\0",
    b"\xff\xff\xff\xff\xff\xff\x1f",
    b"\0\0\0\0\0\0\x20",
    b"\xff\xff\xff\xff\xff\xff\xff",
    b"\x01\0\0\0\0\0\0\0",
    b"\0\0\0",
    b"1234567",
    b"f",
    b"z",
    b"g",
    b"n\xff\0",
];

/// One wrong argument or word of an argument, one missing or one too many.
pub(crate) fn spoil(random: &mut Random, argv: &mut Vec<Vec<u8>>) {
    let place = random.below(argv.len() as u64) as usize;
    let other = random.one_of(&ARGUMENTS).to_vec();
    match random.below(8) {
        0 => drop(argv.remove(place)),
        1 => argv.insert(place, other),
        2 => argv.truncate(place),
        3 => argv[0] = vec![b'n'; 254 + random.below(3) as usize],
        4 => argv[place] = other,
        _ => {
            // A limit's letter stands before its numbers.
            let letter = argv[place].len() % WIDTH;
            let numbers = argv[place].split_off(letter);
            let mut words: Vec<_> = numbers.chunks(WIDTH).map(<[u8]>::to_vec).collect();
            words.insert(0, std::mem::take(&mut argv[place]));
            let word = random.below(words.len() as u64) as usize;
            words[word] = other;
            argv[place] = words.concat();
        }
    }
}

/// Something happens to the key.
pub(crate) fn disturb(random: &mut Random, pair: &mut Pair, key: &str, rule: &Rule) {
    match random.below(40) {
        0..3 => pair.command(&[b"DEL", key.as_bytes()]),
        3 => pair.flush(),
        4..6 => pair.replace(random.one_of(&["SET", "LPUSH", "SADD"]), key),
        6..10 => expire(random, pair, key),
        10..15 => read(random, pair, key, rule),
        15..19 => {
            let (one, other) = (field(random, rule), field(random, rule));
            pair.command(&[b"HDEL", key.as_bytes(), one.as_bytes(), other.as_bytes()]);
        }
        19..24 => crowd(random, pair, key),
        24 => empty(random, pair, key, rule),
        _ => {
            let (name, value) = (field(random, rule), random.one_of(&VALUES));
            pair.command(&[b"HSET", key.as_bytes(), name.as_bytes(), value]);
        }
    }
}

/// A field of the hash.
fn field(random: &mut Random, rule: &Rule) -> String {
    let limit = 1 + random.below(rule.limits.len() as u64);
    let kind = random.one_of(&["g", "f", "o", "s"]);
    match random.below(8) {
        0 => "e".into(),
        1 => "z".into(),
        2 => "c".into(),
        3 => "n:a".into(),
        4 => "n:node with spaces".into(),
        _ => format!("{kind}{limit}"),
    }
}

/// The key loses its last field, and with it its expiry.
fn empty(random: &mut Random, pair: &mut Pair, key: &str, rule: &Rule) {
    let (key, one, other) = (key.as_bytes(), field(random, rule), field(random, rule));
    pair.command(&[b"DEL", key]);
    pair.command(&[b"HSET", key, one.as_bytes(), b"1"]);
    pair.command(&[b"PEXPIRE", key, b"1000"]);
    pair.command(&[b"HDEL", key, one.as_bytes(), one.as_bytes()]);
    pair.command(&[b"HSET", key, other.as_bytes(), random.one_of(&VALUES)]);
}

fn expire(random: &mut Random, pair: &mut Pair, key: &str) {
    let spans =
        ["0", "-1", "1", "2", "1000", "86400000", "-9223372036854775808", "9223372036854775807", "1.5", "+1", "01", ""];
    pair.command(&[b"PEXPIRE", key.as_bytes(), random.one_of(&spans).as_bytes()]);
}

fn read(random: &mut Random, pair: &mut Pair, key: &str, rule: &Rule) {
    let (one, other) = (field(random, rule), field(random, rule));
    match random.below(3) {
        0 => pair.command(&[b"HLEN", key.as_bytes()]),
        1 => pair.command(&[b"HKEYS", key.as_bytes()]),
        _ => pair.command(&[b"HMGET", key.as_bytes(), one.as_bytes(), other.as_bytes(), b"none"]),
    }
}

/// Many nodes asked here, of late or long ago: enough that an acquire looks for stale records.
fn crowd(random: &mut Random, pair: &mut Pair, key: &str) {
    let census = pair.now() / random.one_of(&[1_000_000, 1_000_000, 3_000_000, 60_000_000]);
    let mut words: Vec<Vec<u8>> = vec![b"HSET".to_vec(), key.into()];
    let first = random.below(200);
    for node in first..first + 30 + random.below(60) {
        words.push(format!("n:{node}").into_bytes());
        let asked = census.saturating_sub(random.below(4));
        let record = format!("{asked} {} {} 0 {}", random.below(99), random.below(9), pair.now());
        words.push(if random.percent(5) { random.one_of(&VALUES).to_vec() } else { record.into_bytes() });
    }
    pair.command(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
}
