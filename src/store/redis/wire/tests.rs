//! Tests of which commands share a write, who gets which reply, and who learns that it is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::core::call::{Acquire, Call, JUST_NOW, Op, Window};
use crate::core::key::Digest;
use crate::core::limit::Limit;
use crate::core::policy::Rule;
use crate::store::script::{self, Caller};

/// The number of a command, and its answer.
type Heard = (u32, String);

/// Reports its answer to the test.
struct Note(u32, Sender<Heard>);

impl Pending for Note {
    fn write(&self, line: &mut Vec<u8>) {
        line.extend_from_slice(format!("<{}>", self.0).as_bytes());
    }

    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, ConnectionLost>) {
        let said = answer.map_or("lost".to_owned(), |answer| format!("{:?}", answer.reply.into_value()));
        self.1.send((self.0, said)).expect("the test listens");
    }
}

struct Bench {
    wire: Arc<Wire>,
    heart: Arc<Heart>,
    server: DuplexStream,
    broken: Arc<AtomicBool>,
    notes: (Sender<Heard>, Receiver<Heard>),
}

impl Bench {
    fn new() -> Self {
        let (stream, server) = tokio::io::duplex(1 << 16);
        let (clock, broken) = (Clock::start(), Arc::new(AtomicBool::new(false)));
        let (heart, noted) = (Arc::new(Heart::new(clock)), broken.clone());
        let way = (heart.clone(), Way::Direct);
        let wire = Wire::new(Box::new(stream), way, clock, move || noted.store(true, Ordering::SeqCst));
        Self { wire, heart, server, broken, notes: channel() }
    }

    fn send(&self, number: u32, asking: bool) {
        self.wire.send(self.wire.clock.now(), asking, Box::new(Note(number, self.notes.0.clone())));
    }

    /// What one read brings.
    async fn read(&mut self) -> String {
        let mut bytes = vec![0; 1 << 16];
        let length = self.server.read(&mut bytes).await.expect("an open connection");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    async fn answer(&mut self, replies: &str) {
        self.server.write_all(replies.as_bytes()).await.expect("an open connection");
    }

    /// The next `count` answers.
    async fn heard(&self, count: usize) -> Vec<Heard> {
        let mut heard = Vec::new();
        while heard.len() < count {
            match self.notes.1.try_recv() {
                Ok(note) => heard.push(note),
                Err(_) => tokio::task::yield_now().await,
            }
        }
        assert!(self.notes.1.try_recv().is_err(), "no more than these");
        heard
    }
}

fn ok(number: u32) -> Heard {
    (number, "ok".to_owned())
}

fn lost(number: u32) -> Heard {
    (number, "lost".to_owned())
}

#[tokio::test]
async fn commands_of_one_turn_share_a_write_and_replies_find_who_awaits_them() {
    let mut bench = Bench::new();
    (1..=3).for_each(|number| bench.send(number, number == 2));
    assert_eq!(bench.read().await, "<1>*1\r\n$6\r\nASKING\r\n<2><3>");
    bench.answer("+OK\r\n+OK\r\n>1\r\n+push\r\n*2\r\n:7\r\n:8\r\n+O").await;
    assert_eq!(bench.heard(2).await, [ok(1), (2, "array([int(7), int(8)])".to_owned())]);
    bench.send(4, false);
    assert_eq!(bench.read().await, "<4>");
    bench.answer("K\r\n+OK\r\n").await;
    assert_eq!(bench.heard(2).await, [ok(3), ok(4)]);
    assert!(!bench.broken.load(Ordering::SeqCst));
}

#[tokio::test]
async fn whoever_asks_for_several_has_all_of_them() {
    let mut bench = Bench::new();
    bench.send(1, false);
    let wire = bench.wire.clone();
    let all = tokio::spawn(async move { wire.ask_all(b"<a><b>", 2).await });
    let mut sent = bench.read().await;
    if sent == "<1>" {
        sent += &bench.read().await;
    }
    assert_eq!(sent, "<1><a><b>");
    bench.answer("+OK\r\n:1\r\n:2\r\n").await;
    assert_eq!(bench.heard(1).await, [ok(1)]);
    assert_eq!(all.await.expect("it ends").expect("a connection"), [Value::Int(1), Value::Int(2)]);
}

#[tokio::test]
async fn much_is_written_and_read_in_parts() {
    let mut bench = Bench::new();
    let long = "x".repeat(200_000);
    let (wire, line) = (bench.wire.clone(), long.clone());
    let asked = tokio::spawn(async move { wire.ask_all(line.as_bytes(), 1).await });
    let mut seen = 0;
    while seen < long.len() {
        seen += bench.read().await.len();
    }
    bench.answer(&format!("$200000\r\n{long}\r\n")).await;
    assert_eq!(asked.await.expect("it ends").expect("a connection"), [Value::BulkString(long.into_bytes())]);
    bench.send(1, false);
    assert_eq!(bench.read().await, "<1>");
    bench.answer("+OK\r\n").await;
    assert_eq!(bench.heard(1).await, [ok(1)]);
}

#[tokio::test]
async fn who_awaits_a_reply_when_the_connection_breaks_has_lost_it() {
    for last_words in ["", "+OK\r\n*2\r\n:7\r\n", "+OK\r\nHTTP/1.1 400\r\n"] {
        let mut bench = Bench::new();
        (1..=3).for_each(|number| bench.send(number, false));
        bench.read().await;
        bench.answer(last_words).await;
        let (gone, answered) = (tokio::io::duplex(1).0, !last_words.is_empty());
        drop(std::mem::replace(&mut bench.server, gone));
        let heard = bench.heard(3).await;
        assert_eq!(heard, [if answered { ok(1) } else { lost(1) }, lost(2), lost(3)], "{last_words}");
        assert!(bench.broken.load(Ordering::SeqCst), "it was told before");
        bench.send(4, false);
        assert_eq!(bench.heard(1).await, [lost(4)]);
        assert!(bench.wire.ask_all(b"<5>", 1).await.is_err());
    }
}

#[tokio::test]
async fn a_reply_that_nobody_awaits_ends_it() {
    let mut bench = Bench::new();
    bench.send(1, false);
    bench.read().await;
    bench.answer("+OK\r\n+OK\r\n").await;
    assert_eq!(bench.heard(1).await, [ok(1)]);
    while !bench.broken.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_given_up_is_lost_and_no_break() {
    let mut bench = Bench::new();
    bench.send(1, false);
    bench.read().await;
    bench.heart.end();
    assert_eq!(bench.heard(1).await, [lost(1)]);
    assert!(!bench.broken.load(Ordering::SeqCst));
}

/// A call that joins others of its kind.
struct Joining(u128, Note);

impl Pending for Joining {
    fn write(&self, line: &mut Vec<u8>) {
        self.1.write(line);
    }

    fn join(&self, joined: &mut Joined) -> bool {
        let rule = Arc::new(Rule::of("p", &[Limit::parse("5/1s fixed").expect("a limit")]));
        let op = Op::Acquire(Acquire {
            need: 1,
            want: 1,
            least: 1,
            window: Window::Current,
            epoch: 0,
            held: 0,
            ages: JUST_NOW,
            known: Default::default(),
            until: None,
            claim: None,
        });
        let call = Call { id: 7, digest: Digest(self.0), rule, op, sent_at: Instant(0) };
        joined.add(&Caller { prefix: "p", node: "n", now: None }, &call)
    }

    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, ConnectionLost>) {
        let several = answer.as_ref().is_ok_and(|answer| answer.is_error_of_several);
        let Self(_, Note(number, notes)) = *self;
        let said = match answer {
            Err(ConnectionLost) => "lost".to_owned(),
            Ok(Answer { reply: Reply::Text(text), .. }) => format!("{}", text[0]),
            Ok(_) => if several { "error of several" } else { "error" }.to_owned(),
        };
        notes.send((number, said)).expect("the test listens");
    }
}

impl Bench {
    fn send_joining(&self, number: u32) {
        let note = Note(number, self.notes.0.clone());
        self.wire.send(self.wire.clock.now(), false, Box::new(Joining(number.into(), note)));
    }
}

/// How many keys each script call in these bytes is about; another command counts as 0.
fn keys_of(sent: &str) -> Vec<u32> {
    let calls = sent.split('*').filter(|words| words.contains("EVALSHA") || words.contains('<'));
    let mut keys = Vec::new();
    for call in calls {
        keys.extend(
            call.split("\r\n").nth(6).filter(|_| call.contains("EVALSHA")).and_then(|keys| keys.parse::<u32>().ok()),
        );
        keys.extend(call.matches('<').map(|_| 0));
    }
    keys
}

#[tokio::test]
async fn calls_of_one_kind_are_one_command_where_the_server_is_a_single_one() {
    let mut bench = Bench::new();
    (1..=3).for_each(|number| bench.send_joining(number));
    assert_eq!(bench.read().await, "<1><2><3>", "nothing is known of the server yet");
    bench.answer("+OK\r\n+OK\r\n+OK\r\n").await;
    bench.heard(3).await;
    bench.wire.set_joins(true);
    // Commands that cannot join stand between them, and none overtakes another.
    (1..=3).for_each(|number| bench.send_joining(number));
    bench.send(4, true);
    bench.send_joining(5);
    bench.send(6, false);
    (7..=24).for_each(|number| bench.send_joining(number));
    let sent = bench.read().await;
    assert_eq!(keys_of(&sent), [3, 0, 1, 0, 16, 2], "{sent}");
    let joined = |first: u8, count: u8| {
        let bytes: Vec<_> =
            (first..first + count).flat_map(|n| [&[n, 0, 0, 0, 0, 0, 0][..], &[0; 42]].concat()).collect();
        format!("${}\r\n{}\r\n", bytes.len(), String::from_utf8(bytes).expect("small numbers"))
    };
    let one = joined(5, 1);
    let replies = [&joined(1, 3), "+OK\r\n+OK\r\n", &one, "+OK\r\n", &joined(7, 16), &joined(23, 2)].concat();
    let (first, rest) = replies.split_at(60);
    bench.answer(first).await;
    bench.answer(rest).await;
    let heard = bench.heard(24).await;
    assert!(heard.iter().zip(1..).all(|((number, _), wanted)| *number == wanted), "{heard:?}");
    assert!(heard.iter().all(|(number, said)| [4, 6].contains(number) || *said == number.to_string()), "{heard:?}");
}

#[tokio::test]
async fn an_error_of_all_is_told_to_all_and_calls_leave_one_by_one_from_then_on() {
    let mut bench = Bench::new();
    bench.wire.set_joins(true);
    (1..=2).for_each(|number| bench.send_joining(number));
    assert_eq!(keys_of(&bench.read().await), [2]);
    bench.answer("-NOSCRIPT No matching script.\r\n").await;
    let of_all = |number| (number, "error of several".to_owned());
    assert_eq!(bench.heard(2).await, [of_all(1), of_all(2)]);
    (3..=4).for_each(|number| bench.send_joining(number));
    assert_eq!(bench.read().await, "<3><4>");
    // A lost connection is reported to each of the joined calls.
    bench.answer("+OK\r\n+OK\r\n").await;
    bench.heard(2).await;
    bench.wire.set_joins(true);
    (5..=7).for_each(|number| bench.send_joining(number));
    assert_eq!(keys_of(&bench.read().await), [3]);
    drop(std::mem::replace(&mut bench.server, tokio::io::duplex(1).0));
    assert_eq!(bench.heard(3).await, [lost(5), lost(6), lost(7)]);
}

/// A call whose script is not loaded on every new connection.
struct OfUnusual(&'static Script, Note);

impl Pending for OfUnusual {
    fn write(&self, line: &mut Vec<u8>) {
        self.1.write(line);
    }

    fn unusual(&self) -> Option<&'static Script> {
        Some(self.0)
    }

    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, ConnectionLost>) {
        Box::new(self.1).handle_answer(answer);
    }
}

#[tokio::test]
async fn an_unusual_script_is_loaded_just_before_the_first_call_of_it() {
    let mut bench = Bench::new();
    bench.wire.set_joins(true);
    let unusual: Vec<_> = script::all().into_iter().filter(|script| script.name.contains("entitled")).collect();
    let send = |number: u32, script: usize, asking| {
        let call = OfUnusual(unusual[script], Note(number, bench.notes.0.clone()));
        bench.wire.send(bench.wire.clock.now(), asking, Box::new(call));
    };
    bench.send_joining(1);
    send(2, 0, true);
    send(3, 0, false);
    send(4, 1, false);
    let texts: Vec<_> = unusual.iter().map(|script| format!("${}\r\n{}\r\n", script.text.len(), script.text)).collect();
    let sent = bench.read().await;
    let (first, rest) = sent.split_once("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n").expect("a script is loaded");
    assert_eq!(keys_of(first), [1], "what came before it leaves before it");
    let rest = rest.strip_prefix(&*texts[0]).expect("the script of the first");
    let rest = rest.strip_prefix("*1\r\n$6\r\nASKING\r\n<2><3>").expect("it is loaded once, and before ASKING");
    let rest = rest.strip_prefix("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n").expect("another script");
    assert_eq!(rest, format!("{}<4>", texts[1]));
    // Whether it could be loaded is nobody's concern, and no caller hears the answer to it.
    let one = format!("*7\r\n:1\r\n{}", ":0\r\n".repeat(6));
    bench.answer(&format!("{one}+hash\r\n+OK\r\n+two\r\n+three\r\n-NOPERM no\r\n+four\r\n")).await;
    let heard = bench.heard(4).await;
    assert!(heard.iter().zip(1..).all(|((number, _), wanted)| *number == wanted), "{heard:?}");
    for ((_, said), word) in heard[1..].iter().zip(["two", "three", "four"]) {
        assert!(said.contains(word), "{heard:?}");
    }
}
