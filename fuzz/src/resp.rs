//! RESP as clients send it, with `MULTI`: the parser, and a daemon behind it.
//!
//! Holds: bytes that come in pieces, split at every place, are the same commands as in one; each command has one reply,
//! of the kind that a small model of the connection tells; and behind the last reply comes nothing.

use rationd::wire::command::Command;
use rationd::wire::resp::{Args, Parser, ProtocolError};
use rationd::wire::value::Value;

use super::daemon;

/// What commands are made of.
pub const WORDS: &[&[u8]] = &[
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"*5\r\n",
    b"$1\r\n",
    b"$3\r\n",
    b"$-1\r\n",
    b"\r\n",
    b"MULTI\r\n",
    b"EXEC\r\n",
    b"DISCARD\r\n",
    b"RESET\r\n",
    b"QUIT\r\n",
    b"PING\r\n",
    b"HELLO 3\r\n",
    b"HELLO 2\r\n",
    b"CL.THROTTLE k 15 30 60\r\n",
    b"THROTTLE k 15 30 60 1\r\n",
    b"RATION.CHECK api k\r\n",
    b"RATION.CHECK busy k\r\n",
    b"RATION.MCHECK 2 api a watched b\r\n",
    b"RATION.HOLD api k COST 3\r\n",
    b"RATION.LEASE api k 5\r\n",
    b"RATION.REFUND api k 1\r\n",
    b"RATION.RESET api k\r\n",
    b"RATION.EXPLAIN api k\r\n",
    b"RATION.HEADERS api k\r\n",
    b"RATION.KEYS\r\n",
    b"RATION.STATS\r\n",
    b"RATION.TOP COUNT 5\r\n",
    b"RATION.DENIALS\r\n",
    b"RATION.RELOAD DRYRUN\r\n",
    b"RATION.PEERS\r\n",
    b"RATION.POLICIES\r\n",
    b"RATION.SETTLE x 1\r\n",
    b"COMMAND DOCS\r\n",
    b"COMMAND COUNT\r\n",
    b"CLIENT INFO\r\n",
    b"CLIENT SETNAME x\r\n",
    b"CONFIG GET *\r\n",
    b"EVAL \"return redis.call('cl.throttle', KEYS[1], 1, 2, 3)\" 1 k\r\n",
    b"INFO\r\n",
    b"SCRIPT LOAD x\r\n",
    b"SELECT 0\r\n",
    b"-1",
    b"9223372036854775807",
    b" COST ",
    b" PEEK",
    b"\"",
    b"'",
    b"\\x41",
];

type Words = Vec<Vec<u8>>;

/// The kind of a reply, as far as it follows from the connection alone.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Any,
    Error,
    Status(&'static str),
    Bulk(Vec<u8>),
    /// Of so many replies.
    Transaction(usize),
}

/// See the module.
pub fn run(input: &[u8]) {
    let (commands, problem) = parsed(input, &[]);
    let every: Vec<usize> = (0..input.len()).collect();
    assert_eq!(parsed(input, &every), (commands.clone(), problem), "split at every place");
    if input.len() <= 200 {
        for cut in 0..input.len() {
            assert_eq!(parsed(input, &[cut]), (commands.clone(), problem), "split at {cut}");
        }
    }
    if problem == Some(ProtocolError::Http) && commands.is_empty() {
        return;
    }
    let wanted = replies(&commands, problem.is_some());
    let cut = input.len() / 2;
    let told = daemon::talk(&daemon::served().socket, &[&input[..cut], &input[cut..]]);
    let mut rest = &told[..];
    for (place, wanted) in wanted.iter().enumerate() {
        let read = Value::parse(rest).unwrap_or_else(|problem| panic!("reply {place}: {problem}"));
        let (reply, len) =
            read.unwrap_or_else(|| panic!("reply {place} of {} does not come whole", wanted_text(wanted)));
        assert!(fits(wanted, &reply), "reply {place}: {} was wanted, not {reply:?}", wanted_text(wanted));
        rest = &rest[len..];
    }
    assert!(rest.is_empty(), "{} replies are wanted, and more come: {}", wanted.len(), rest.escape_ascii());
}

fn wanted_text(wanted: &Kind) -> String {
    format!("{wanted:?}")
}

fn parsed(input: &[u8], cuts: &[usize]) -> (Vec<Words>, Option<ProtocolError>) {
    let mut parser = Parser::new();
    let (mut commands, mut used) = (Vec::new(), 0);
    for &end in cuts.iter().chain([&input.len()]) {
        loop {
            match parser.parse(&input[used..end]) {
                Ok(None) => break,
                Ok(Some(len)) => {
                    assert!(len > 0, "a command has bytes");
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

/// What a connection answers to these commands and, after them, to what is none.
fn replies(commands: &[Words], is_broken: bool) -> Vec<Kind> {
    let (mut wanted, mut transaction) = (Vec::new(), None);
    for words in commands {
        let flat = words.concat();
        let mut at = 0;
        let mut range = |word: &Vec<u8>| {
            let start = at;
            at += u32::try_from(word.len()).expect("inputs are short");
            start..at
        };
        let ranges: Vec<_> = words.iter().map(&mut range).collect();
        let command = Command::parse(Args::new(&flat, &ranges));
        let is_last = matches!(command, Ok(Command::Quit));
        wanted.push(reply(command.ok(), &mut transaction));
        if is_last {
            return wanted;
        }
    }
    wanted.extend(is_broken.then_some(Kind::Error));
    wanted
}

/// The reply to one command; `transaction` is how many are queued, and whether one of them was none.
fn reply(command: Option<Command<'_>>, transaction: &mut Option<(usize, bool)>) -> Kind {
    let Some(command) = command else {
        if let Some((_, is_spoilt)) = transaction {
            *is_spoilt = true;
        }
        return Kind::Error;
    };
    match (command, transaction.as_mut()) {
        (Command::Quit, _) => Kind::Status("OK"),
        (Command::ResetConnection, _) => {
            *transaction = None;
            Kind::Status("RESET")
        }
        (Command::Multi, None) => {
            *transaction = Some((0, false));
            Kind::Status("OK")
        }
        (Command::Exec | Command::Discard, None) | (Command::Multi, Some(_)) => Kind::Error,
        (Command::Discard, Some(_)) => {
            *transaction = None;
            Kind::Status("OK")
        }
        (Command::Exec, Some(_)) => match transaction.take() {
            Some((count, false)) => Kind::Transaction(count),
            _ => Kind::Error,
        },
        (_, Some((count, _))) => {
            *count += 1;
            Kind::Status("QUEUED")
        }
        (Command::Ping(None), None) => Kind::Status("PONG"),
        (Command::Ping(Some(text)) | Command::Echo(text), None) => Kind::Bulk(text.to_vec()),
        (Command::NoOp, None) => Kind::Status("OK"),
        (_, None) => Kind::Any,
    }
}

fn fits(wanted: &Kind, reply: &Value) -> bool {
    match wanted {
        Kind::Any => true,
        Kind::Error => matches!(reply, Value::Error(_)),
        Kind::Status(text) => *reply == Value::Simple((*text).to_owned()),
        Kind::Bulk(bytes) => *reply == Value::Bulk(bytes.clone()),
        Kind::Transaction(count) => reply.as_array().is_some_and(|replies| replies.len() == *count),
    }
}
