//! Clients that load daemons over Unix sockets and write down every answer.
//!
//! Open loop by default: a client sends when it is time, whatever is still unanswered, so that a
//! slow daemon cannot slow the demand. A flood sends pipelined batches as fast as the socket takes
//! them.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::clock::{Watch, wall_us};
use super::ledger::{Answer, Check, Ledger, word};
use super::resp::encode;

/// Longest wait for any reply: far above what a daemon may take, so a missing one is a failure.
const PATIENCE: Duration = Duration::from_secs(3);

/// One client: a connection, what it asks, and how often.
#[derive(Clone, Debug)]
pub struct Client {
    /// Which daemon, for the ledger.
    pub node: u8,
    /// Its socket.
    pub socket: PathBuf,
    /// The policy asked for.
    pub policy: String,
    /// The key asked for.
    pub key: String,
    /// How often.
    pub pace: Pace,
}

/// How often a client asks.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many checks a second, evenly, open loop.
    PerSecond(f64),
    /// Batches of so many, one after the other.
    Flood(usize),
}

/// Runs all clients for `length`, while this thread does what `meanwhile` says, and returns what
/// all of them saw.
pub fn run(clients: &[Client], length: Duration, meanwhile: impl FnOnce(&Watch)) -> Ledger {
    run_within(clients, &Span { watch: Watch::start(), length, over: AtomicBool::new(false) }, meanwhile)
}

/// The same for as long as `meanwhile` takes, but no longer than `longest`.
pub fn run_while(clients: &[Client], longest: Duration, meanwhile: impl FnOnce(&Watch)) -> Ledger {
    let span = Span { watch: Watch::start(), length: longest, over: AtomicBool::new(false) };
    run_within(clients, &span, |watch| {
        let _over = Over(&span.over);
        meanwhile(watch);
    })
}

/// How long clients ask.
struct Span {
    watch: Watch,
    length: Duration,
    over: AtomicBool,
}

/// Ends a span, also when what it goes with has panicked.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Span {
    fn lasts(&self, at: Duration) -> bool {
        at < self.length && !self.over.load(Ordering::Relaxed)
    }
}

fn run_within(clients: &[Client], span: &Span, meanwhile: impl FnOnce(&Watch)) -> Ledger {
    thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(index, client)| {
                let phase = index as f64 / clients.len() as f64;
                scope.spawn(move || client.run(span, phase))
            })
            .collect();
        meanwhile(&span.watch);
        let mut ledger = Ledger::default();
        for client in running {
            ledger.merge(client.join().expect("a client ended by itself"));
        }
        ledger
    })
}

impl Client {
    fn run(&self, span: &Span, phase: f64) -> Ledger {
        let stream = UnixStream::connect(&self.socket).expect("the daemon accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out is not zero");
        let mut request = Vec::new();
        encode(&mut request, &[b"RATION.CHECK", self.policy.as_bytes(), self.key.as_bytes()]);
        match self.pace {
            Pace::PerSecond(rate) => self.pace(&stream, &request, span, (rate, phase)),
            Pace::Flood(batch) => self.flood(&stream, &request.repeat(batch), batch, span),
        }
    }

    fn pace(&self, stream: &UnixStream, request: &[u8], span: &Span, rate: (f64, f64)) -> Ledger {
        let (rate, phase) = rate;
        let (sent, to_answer) = mpsc::channel();
        thread::scope(|scope| {
            let reader = scope.spawn(move || self.read(stream, &to_answer));
            let mut writer = stream;
            let mut late = Duration::ZERO;
            for count in 0_u32.. {
                let due = Duration::from_secs_f64((f64::from(count) + phase) / rate);
                if !span.lasts(due) {
                    break;
                }
                span.watch.pause_until(due);
                late = late.max(span.watch.elapsed().saturating_sub(due));
                if sent.send(wall_us()).is_err() || writer.write_all(request).is_err() {
                    break;
                }
            }
            drop(sent);
            Ledger { late, ..reader.join().expect("a reader ended by itself") }
        })
    }

    fn read(&self, stream: &UnixStream, sent: &mpsc::Receiver<u64>) -> Ledger {
        let mut ledger = Ledger::default();
        let mut replies = Replies::default();
        while let Ok(sent_us) = sent.recv() {
            match replies.next(stream) {
                Ok(Some(reply)) => self.record(&mut ledger, sent_us, reply),
                Ok(None) => {
                    ledger.unanswered = 1 + sent.iter().count() as u64;
                    break;
                }
                Err(error) => {
                    ledger.errors.push(format!("no reply: {error}"));
                    break;
                }
            }
        }
        ledger
    }

    fn flood(&self, stream: &UnixStream, requests: &[u8], batch: usize, span: &Span) -> Ledger {
        let mut ledger = Ledger::default();
        let mut replies = Replies::default();
        let mut writer = stream;
        while span.lasts(span.watch.elapsed()) && ledger.errors.is_empty() {
            let sent_us = wall_us();
            writer.write_all(requests).expect("the daemon reads");
            for _ in 0..batch {
                match replies.next(stream) {
                    Ok(Some(reply)) => self.record(&mut ledger, sent_us, reply),
                    other => {
                        ledger.errors.push(format!("no reply: {other:?}"));
                        break;
                    }
                }
            }
        }
        ledger
    }

    fn record(&self, ledger: &mut Ledger, sent_us: u64, reply: Result<Answer, String>) {
        match reply {
            Ok(answer) => ledger.checks.push(Check { node: self.node, sent_us, replied_us: wall_us(), answer }),
            Err(error) => ledger.errors.push(error),
        }
    }
}

/// Reads decisions off a stream without allocating for each.
#[derive(Debug, Default)]
struct Replies {
    bytes: Vec<u8>,
    taken: usize,
}

impl Replies {
    /// The next decision, the text of an error reply in its place, or `None` at the end.
    fn next(&mut self, mut stream: &UnixStream) -> io::Result<Option<Result<Answer, String>>> {
        loop {
            let mut lines = Lines { bytes: &self.bytes[self.taken..], taken: 0 };
            if let Some(reply) = lines.decision() {
                self.taken += lines.taken;
                return Ok(Some(reply));
            }
            self.bytes.drain(..self.taken);
            self.taken = 0;
            let old = self.bytes.len();
            self.bytes.resize(old + 32 * 1024, 0);
            let count = match stream.read(&mut self.bytes[old..]) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                other => other?,
            };
            self.bytes.truncate(old + count);
            if count == 0 {
                return Ok(None);
            }
        }
    }
}

struct Lines<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Lines<'a> {
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.taken..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        self.taken += end + 1;
        rest[..end].strip_suffix(b"\r")
    }

    /// A number or a word, as a line of its own or with its length before it.
    fn field(&mut self) -> Option<&'a [u8]> {
        let line = self.line()?;
        if line[0] == b'$' { self.line() } else { Some(&line[1..]) }
    }

    fn decision(&mut self) -> Option<Result<Answer, String>> {
        let head = self.line()?;
        if head[0] != b'*' {
            return Some(Err(String::from_utf8_lossy(head).into_owned()));
        }
        let count = usize::try_from(digits(&head[1..])).expect("a count");
        let mut fields = [&b""[..]; 10];
        for index in 0..count {
            let field = self.field()?;
            if let Some(place) = fields.get_mut(index) {
                *place = field;
            }
        }
        let reset_at_ms = digits(fields[6]);
        Some(Ok(Answer { allowed: fields[0] == b"0", reset_at_ms, reason: word(fields[7]), source: word(fields[9]) }))
    }
}

fn digits(text: &[u8]) -> u64 {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    text.iter()
        .try_fold(0, |sum, byte| Some(sum * 10 + digit(byte)?))
        .unwrap_or_else(|| panic!("a number was wanted, not {:?}", String::from_utf8_lossy(text)))
}
