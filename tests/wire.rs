//! The codec, from the outside: any split of the input gives the same commands, any bytes are safe.

use proptest::prelude::*;
use rationd::wire::command::{Client, Command, MAX_KEY};
use rationd::wire::command_error::CommandError;
use rationd::wire::rate::{Dialect, Rate};
use rationd::wire::resp::{Args, MAX_ARGUMENTS, MAX_LINE, MAX_REQUEST, Parser, ProtocolError};
use rationd::wire::value::Value;

type Commands = Vec<Vec<Vec<u8>>>;

/// Everything that comes out of `input` when it arrives in pieces that end at `cuts`.
fn parsed(input: &[u8], cuts: &[usize]) -> (Commands, Option<ProtocolError>) {
    let mut parser = Parser::new();
    let mut commands = Vec::new();
    let mut used = 0;
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            match parser.parse(&input[used..end]) {
                Ok(None) => break,
                Ok(Some(len)) => {
                    let args = parser.args(&input[used..end]);
                    if !args.is_empty() {
                        commands.push(args.iter().map(<[u8]>::to_vec).collect());
                    }
                    used += len;
                }
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for arg in command {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn inline(text: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    match parsed(text, &[]) {
        (_, Some(error)) => Err(error),
        (mut commands, None) => Ok(commands.pop().unwrap_or_default()),
    }
}

fn words(text: &[&[u8]]) -> Vec<Vec<u8>> {
    text.iter().map(|word| word.to_vec()).collect()
}

/// The text of the error that a command gets, or `""` when it is understood.
fn problem(words: &[&str]) -> String {
    let bytes = words.concat().into_bytes();
    let mut ranges = Vec::new();
    let mut at = 0;
    for word in words {
        ranges.push(at..at + word.len() as u32);
        at += word.len() as u32;
    }
    Command::parse(Args::new(&bytes, &ranges)).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn inline_commands_quote_as_redis_does() {
    assert_eq!(inline(b"PING\r\n"), Ok(words(&[b"PING"])));
    assert_eq!(inline(b"  ECHO   a\tb \n"), Ok(words(&[b"ECHO", b"a", b"b"])));
    assert_eq!(inline(b"ECHO \"a b\\x41\\n\\\"\" 'it\\'s \\n'\r\n"), Ok(words(&[b"ECHO", b"a bA\n\"", b"it's \\n"])));
    assert_eq!(inline(b"ECHO \"\" ''\r\n"), Ok(words(&[b"ECHO", b"", b""])));
    assert_eq!(inline(b"ECHO \"a\"b\r\n"), Err(ProtocolError::Quotes));
    assert_eq!(inline(b"ECHO 'a\r\n"), Err(ProtocolError::Quotes));
    assert_eq!(inline(b"\r\n"), Ok(vec![]));
    assert_eq!(inline(b"GET /v1/check HTTP/1.1\r\n"), Err(ProtocolError::Http));
    assert_eq!(inline(b"PRI * HTTP/2.0\r\n"), Err(ProtocolError::Http));
    assert_eq!(inline(&[b"GET /".as_slice(), &[b'x'; 65_536]].concat()), Err(ProtocolError::Http));
    assert_eq!(inline(&[b"ECHO ".as_slice(), &[b'x'; 65_536]].concat()), Err(ProtocolError::InlineLength));
}

#[test]
fn broken_requests_are_told_apart() {
    let error = |bytes: &[u8]| parsed(bytes, &[]).1.map(|error| error.to_string()).unwrap_or_default();
    for (bytes, wanted) in [
        (&b"*x\r\n"[..], "Protocol error: invalid multibulk length: 1 to 1024 arguments are understood"),
        (b"*1025\r\n", "Protocol error: invalid multibulk length: 1 to 1024 arguments are understood"),
        (b"*99999999999999999999999\r\n", "Protocol error: too big mbulk count string"),
        (b"*1\r\n+OK\r\n", "Protocol error: expected '$', got '+'"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length: a request has 1048576 bytes at most"),
        (b"*1\r\n$1048577\r\n", "Protocol error: invalid bulk length: a request has 1048576 bytes at most"),
        (b"*1\r\n$x\r\n", "Protocol error: invalid bulk length: a request has 1048576 bytes at most"),
        (b"*1\r\n$99999999999999999999999\r\n", "Protocol error: too big bulk count string"),
        (b"*1\r\n$1\r\nabc\r\n", "Protocol error: expected CRLF after a bulk string"),
    ] {
        assert_eq!(error(bytes), wanted, "{}", bytes.escape_ascii());
    }
    assert_eq!(error(&vec![b'a'; MAX_LINE]), "Protocol error: too big inline request");
    assert_eq!(error(b"*0\r\n*-1\r\n\r\n"), "");
}

#[test]
fn limits_of_a_request_are_exact() {
    let most = vec![b"x".to_vec(); MAX_ARGUMENTS];
    assert_eq!(parsed(&encoded(&most), &[]), (vec![most], None));
    // Two arguments that fill a request to its last byte, and one byte more.
    let head = encoded(&[b"ECHO".to_vec(), vec![b'x'; 1_000_000]]).len() - 1_000_000;
    let fits = [b"ECHO".to_vec(), vec![b'x'; MAX_REQUEST - head]];
    assert_eq!(encoded(&fits).len(), MAX_REQUEST);
    assert_eq!(parsed(&encoded(&fits), &[]).0.len(), 1);
    let longer = [b"ECHO".to_vec(), vec![b'x'; MAX_REQUEST - head + 1]];
    assert_eq!(parsed(&encoded(&longer), &[]).1, Some(ProtocolError::BulkLength));
}

#[test]
fn throttle_errors_have_redis_cells_texts() {
    let usage = "ERR Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
    assert_eq!(problem(&["CL.THROTTLE", "k", "15", "30"]), usage);
    assert_eq!(problem(&["CL.THROTTLE", "k", "15", "30", "60", "1", "2"]), usage);
    assert_eq!(problem(&["cl.throttle", "k", "15", "x", "60"]), "ERR Couldn't parse as integer: x");
    assert_eq!(problem(&["cl.throttle", "k", "15", "30", "60", ""]), "ERR Couldn't parse as integer: ");
    assert_eq!(problem(&["cl.throttle", "k", "15", "0", "60"]), "ERR Zero rates are not supported");
    assert_eq!(problem(&["cl.throttle", "k", "15", "30", "0"]), "ERR Zero rates are not supported");
    for numbers in [["-1", "30", "60"], ["15", "-1", "60"], ["15", "30", "-1"]] {
        let text = problem(&["cl.throttle", "k", numbers[0], numbers[1], numbers[2]]);
        assert!(text.ends_with("must not be negative"), "{text}");
    }
    assert_eq!(problem(&["Cl.Throttle", "k", "0", "1", "60", "-5"]), "");
}

#[test]
fn errors_are_worded_as_redis_words_them() {
    for (words, wanted) in [
        (&["FOO", "a", "b"][..], "ERR unknown command 'FOO', with args beginning with: 'a' 'b' "),
        (&["RATION.FOO"], "ERR unknown command 'RATION.FOO', with args beginning with: "),
        (&["ECHO"], "ERR wrong number of arguments for 'echo' command"),
        (&["RATION.CHECK", "p"], "ERR wrong number of arguments for 'ration.check' command"),
        (&["RATION.CHECK", "p", "k", "COST"], "ERR syntax error"),
        (&["RATION.CHECK", "p", "k", "PEEK", "PEEK"], "ERR syntax error"),
        (&["RATION.CHECK", "p", "k", "COST", "1.5"], "ERR Couldn't parse as integer: 1.5"),
        (&["HELLO", "4"], "NOPROTO unsupported protocol version: HELLO 2 and HELLO 3 are understood"),
        (&["HELLO", "3", "AUTH", "me"], "ERR Syntax error in HELLO option 'AUTH'"),
        (&["HELLO", "x"], "ERR Protocol version is not an integer or out of range"),
        (&["SELECT", "1"], "ERR DB index is out of range: 0 is the only one"),
        (&["CLIENT", "REPLY", "OFF"], "ERR every command is answered here: CLIENT REPLY takes ON only"),
        (&["CLIENT", "KILL"], "ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
        (&["CLIENT", "SETNAME", "a b"], "ERR Client names cannot contain spaces, newlines or special characters."),
    ] {
        assert_eq!(problem(words), wanted);
    }
}

#[test]
fn keys_above_the_bound_are_refused() {
    let key = "k".repeat(MAX_KEY + 1);
    assert!(problem(&["CL.THROTTLE", &key, "1", "1", "1"]).starts_with("ERR the key has 65537 bytes"));
    assert_eq!(problem(&["RATION.CHECK", "p", &key[1..]]), "");
}

#[test]
fn commands_are_understood_in_any_case() {
    let bytes = b"rAtIoN.cHeCkpkpEeKcOsT7";
    let ranges = [0..12, 12..13, 13..14, 14..18, 18..22, 22..23];
    let command = Command::parse(Args::new(bytes, &ranges)).unwrap();
    assert_eq!(command, Command::Check { policy: b"p", key: b"k", cost: 7, peek: true });
    let bytes = b"client getname";
    let command = Command::parse(Args::new(bytes, &[0..6, 7..14])).unwrap();
    assert_eq!(command, Command::Client(Client::GetName));
}

#[test]
fn numbers_at_the_edges_are_refused_not_wrapped() {
    let edges = [
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "18446744073709551616",
        "1e3",
        " 1",
        "٣",
    ];
    for edge in edges {
        for place in 2..6 {
            let mut words = ["CL.THROTTLE", "k", "15", "30", "60", "1"];
            words[place] = edge;
            let text = problem(&words);
            let parses = edge.parse::<i64>().is_ok();
            assert_eq!(text.starts_with("ERR Couldn't parse as integer"), !parses, "{words:?}: {text}");
        }
    }
    let rate = Rate { dialect: Dialect::RedisCell, max_burst: i64::MAX as u64, count: 1, period_s: i64::MAX as u64 };
    assert!(rate.limit().is_err());
    let most = i64::MAX as u64;
    for (dialect, max_burst, count, period_s, wanted) in [
        (
            Dialect::RedisCell,
            15,
            30,
            most,
            "period is 9223372036854775807: it must be 1 to 316224000 (seconds, of ten years)",
        ),
        (Dialect::RedisCell, 15, most, 60, "count is 9223372036854775807: it must be 1 to 9007199254740991 (2^53 - 1)"),
        (
            Dialect::RedisCell,
            most,
            30,
            60,
            "max_burst is 9223372036854775807: it must be 0 to 9007199254740990 (below 2^53)",
        ),
        (
            Dialect::Throttlecrab,
            most,
            30,
            60,
            "max_burst is 9223372036854775807: it must be 1 to 9007199254740991 (below 2^53)",
        ),
        (
            Dialect::RedisCell,
            10_000_000,
            1,
            86_400,
            "max_burst is 10000000: it must be 26059 at most, or 71 years would not fill the bucket at 1 per 86400 s",
        ),
        (
            Dialect::Throttlecrab,
            10_000_000,
            1,
            86_400,
            "max_burst is 10000000: it must be 26060 at most, or 71 years would not fill the bucket at 1 per 86400 s",
        ),
    ] {
        let rate = Rate { dialect, max_burst, count, period_s };
        assert_eq!(rate.limit().expect_err("too much").to_string(), wanted);
    }
    for (count, period_s) in [(10_000_000_000, 86_400), ((1 << 53) - 1, 316_224_000), (1, 316_224_000)] {
        let rate = Rate { dialect: Dialect::RedisCell, max_burst: 4, count, period_s };
        assert_eq!(rate.limit().expect("it fits").capacity(), 5);
    }
    assert!(matches!(
        Command::parse(Args::new(b"RATION.REFUNDpk-1", &[0..13, 13..14, 14..15, 15..17])),
        Err(CommandError::Negative(_, -1))
    ));
}

proptest! {
    #[test]
    fn any_split_gives_the_same_commands(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 1..6),
        inlines in prop::collection::vec("[a-z'\" ]{0,12}", 0..3),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut input: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
        for line in &inlines {
            input.extend(line.as_bytes());
            input.extend(b"\r\n");
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = parsed(&input, &[]);
        prop_assert_eq!(&whole.0[..commands.len().min(whole.0.len())], &commands[..]);
        prop_assert_eq!(parsed(&input, &cuts), whole.clone());
        let every: Vec<usize> = (0..input.len()).collect();
        prop_assert_eq!(parsed(&input, &every), whole);
    }

    #[test]
    fn any_bytes_are_safe(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"*$:+-\r\n0123456789\"'\\x ".to_vec())], 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        let (commands, _) = parsed(&bytes, &[cut]);
        for command in &commands {
            let flat = command.concat();
            let mut at = 0;
            let ranges: Vec<_> = command.iter().map(|arg| { let start = at; at += arg.len() as u32; start..at }).collect();
            if let Err(error) = Command::parse(Args::new(&flat, &ranges)) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
        let _ = Value::parse(&bytes);
    }

    #[test]
    fn any_arguments_are_safe(
        name in prop::sample::select(vec!["CL.THROTTLE", "RATION.CHECK", "RATION.REFUND", "RATION.KEYS", "HELLO", "CLIENT", "COMMAND", "CONFIG", "SELECT"]),
        args in prop::collection::vec(prop_oneof![any::<i64>().prop_map(|n| n.to_string()), "[A-Z]{0,8}", ".{0,8}"], 0..8),
    ) {
        let mut words: Vec<&str> = vec![name];
        words.extend(args.iter().map(String::as_str));
        let _ = problem(&words);
    }
}
