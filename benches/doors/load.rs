//! The load: this program once more, on a core of its own, with fifty connections that ask one server for a thousand keys in turn.
//!
//! It writes requests that were made before and reads no more of an answer than shows where it ends and what it says, so that the
//! server is the slower side. Of HTTP/2 it speaks what a client of a unary method needs; header fields are indexed from the second
//! request on, as clients do.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use prost::Message;
use rationd::clock::Clock;
use rationd::core::time::{Instant, Micros};
use rationd::serve::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest, SHOULD_RATE_LIMIT};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::process::{Failed, output, pinned};

/// The word that makes this program the load.
const LOAD: &str = "--load";
/// Connections of a run.
pub(crate) const CONNECTIONS: usize = 50;
/// Keys that are asked for in turn.
pub(crate) const KEYS: usize = 1_000;

/// How a server is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Envoy's Rate Limit Service, on so many streams of each connection at a time.
    Rls(usize),
    /// Our `/v1/check` with this method, of a policy, and what its answer has to say.
    Check(&'static str, &'static str, &'static str),
    /// throttlecrab's `/throttle` with burst and count, and what its answer has to say.
    Throttle(u64, &'static str),
}

impl Kind {
    fn words(self) -> [String; 3] {
        match self {
            Self::Rls(streams) => ["rls".into(), streams.to_string(), String::new()],
            Self::Check(method, policy, says) => [method.into(), policy.into(), says.into()],
            Self::Throttle(count, says) => ["throttle".into(), count.to_string(), says.into()],
        }
    }

    /// The same, whatever the answer says.
    pub(crate) fn anyhow(self) -> Self {
        match self {
            Self::Rls(streams) => Self::Rls(streams),
            Self::Check(method, policy, _) => Self::Check(method, policy, ""),
            Self::Throttle(count, _) => Self::Throttle(count, ""),
        }
    }
}

/// Asks the server at `address`, a socket's path or host and port, for so long. Returns the answers and the seconds that they took.
pub(crate) fn run(kind: Kind, address: &str, length: Duration) -> Result<(u64, f64), Failed> {
    let this = std::env::current_exe().map_err(|error| Failed(error.to_string()))?;
    let mut command: Command = pinned(&this.to_string_lossy(), 1);
    command.arg(LOAD).arg(address).arg(length.as_millis().to_string()).args(kind.words());
    let report = output(command)?;
    let mut figures = report.split_whitespace();
    let read = (|| Some((figures.next()?.parse().ok()?, figures.next()?.parse().ok()?)))();
    read.ok_or_else(|| Failed(format!("{address}: the load says {report:?}")))
}

/// Is the load, if the program was started for that.
pub(crate) fn serve(arguments: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    let [_, load, address, length, kind, first, second] = arguments else { return None };
    (load == LOAD).then(|| {
        let length = Duration::from_millis(length.parse()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let speaker = |number: usize| -> Result<Speaker, Box<dyn Error>> {
            let of = |text: &dyn Fn(usize) -> Vec<u8>| (0..KEYS).map(|key| text((key + number * 20) % KEYS)).collect();
            Ok(match kind.as_str() {
                "rls" => Speaker::h2(of(&message), first.parse()?),
                "GET" | "POST" => Speaker::h1(of(&|key| check(kind, first, key)), second),
                _ => {
                    let count = first.parse()?;
                    Speaker::h1(of(&|key| throttle(count, key)), second)
                }
            })
        };
        let speakers = (0..CONNECTIONS).map(speaker).collect::<Result<Vec<_>, _>>()?;
        let (answers, seconds) = runtime.block_on(ask_all(address, speakers, length))?;
        println!("{answers} {seconds}");
        Ok(())
    })
}

async fn ask_all(address: &str, speakers: Vec<Speaker>, length: Duration) -> Result<(u64, f64), Box<dyn Error>> {
    let mut streams = Vec::new();
    for speaker in speakers {
        let stream: Box<dyn Connection> = if Path::new(address).is_absolute() {
            Box::new(UnixStream::connect(address).await?)
        } else {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        };
        streams.push((speaker, stream));
    }
    let clock = Clock::start();
    let (began, until) = (clock.now(), clock.now() + Micros(length.as_micros() as u64));
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|(speaker, stream)| {
            tokio::spawn(async move { ask(clock, speaker, stream, until).await.map_err(|error| error.to_string()) })
        })
        .collect();
    let mut answers = 0;
    for task in tasks {
        answers += task.await??;
    }
    Ok((answers, clock.now().since(began).0 as f64 / 1e6))
}

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection for S {}

/// Asks until the time is over, and awaits what was asked. Returns the number of answers.
async fn ask(
    clock: Clock,
    mut speaker: Speaker,
    mut stream: Box<dyn Connection>,
    until: Instant,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let (mut out, mut bytes) = (Vec::new(), Vec::with_capacity(64 << 10));
    speaker.greet(&mut out);
    let (mut asked, mut answered) = (0, 0);
    for _ in 0..speaker.at_once() {
        speaker.request(&mut out);
        asked += 1;
    }
    while answered < asked {
        stream.write_all(&out).await?;
        out.clear();
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err("the server has closed the connection".into());
        }
        let (read, answers) = speaker.read(&bytes, &mut out)?;
        bytes.drain(..read);
        answered += answers;
        if clock.now() < until {
            for _ in 0..answers {
                speaker.request(&mut out);
                asked += 1;
            }
        }
    }
    Ok(answered)
}

/// What a connection speaks, and what it asks next.
enum Speaker {
    /// HTTP/1.1, one request at a time. Each answer must have some words in it.
    One { requests: Vec<Vec<u8>>, next: usize, says: String },
    /// HTTP/2, several at a time.
    Two { messages: Vec<Vec<u8>>, next: usize, streams: usize, messages_read: u64, answered: u64 },
}

const FRAME: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// END_STREAM of DATA and HEADERS, ACK of SETTINGS and PING.
const END_OR_ACK: u8 = 1;
const END_HEADERS: u8 = 4;

impl Speaker {
    fn h1(requests: Vec<Vec<u8>>, says: &str) -> Self {
        Self::One { requests, next: 0, says: says.to_owned() }
    }

    fn h2(messages: Vec<Vec<u8>>, streams: usize) -> Self {
        Self::Two { messages, next: 0, streams, messages_read: 0, answered: 0 }
    }

    fn at_once(&self) -> usize {
        if let Self::Two { streams, .. } = self { *streams } else { 1 }
    }

    /// What comes first. Of HTTP/2 the window of the connection is opened as far as it goes, so it is never opened again.
    fn greet(&self, out: &mut Vec<u8>) {
        if let Self::Two { .. } = self {
            out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            frame(out, SETTINGS, 0, 0, &[]);
            frame(out, WINDOW_UPDATE, 0, 0, &(0x7fff_ffff_u32 - 0xffff).to_be_bytes());
        }
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::One { requests, next, .. } => {
                out.extend_from_slice(&requests[*next % requests.len()]);
                *next += 1;
            }
            Self::Two { messages, next, .. } => {
                let stream = 2 * u32::try_from(*next).expect("a run is short") + 1;
                // :method POST and :scheme http are in HPACK's static table; the others enter the dynamic one.
                let mut fields = vec![0x83, 0x86];
                if *next == 0 {
                    for (name, value) in [(0x44, SHOULD_RATE_LIMIT), (0x41, "localhost"), (0x5f, "application/grpc")] {
                        fields.push(name);
                        text(&mut fields, value);
                    }
                    fields.push(0x40);
                    text(&mut fields, "te");
                    text(&mut fields, "trailers");
                } else {
                    fields.extend_from_slice(&[0xc1, 0xc0, 0xbf, 0xbe]);
                }
                frame(out, HEADERS, END_HEADERS, stream, &fields);
                frame(out, DATA, END_OR_ACK, stream, &messages[*next % messages.len()]);
                *next += 1;
            }
        }
    }

    /// Reads whole answers. Returns how many bytes those had, and how many answers there were.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(usize, u64), String> {
        match self {
            Self::One { says, .. } => {
                let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok((0, 0)) };
                let (fields, length) = (String::from_utf8_lossy(&bytes[..head]), head + 4);
                let body = fields.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                let whole = length + body.ok_or_else(|| format!("no content-length: {fields}"))?;
                if bytes.len() < whole {
                    return Ok((0, 0));
                }
                let answer = String::from_utf8_lossy(&bytes[..whole]);
                if answer.contains(&**says) { Ok((whole, 1)) } else { Err(format!("{says:?} was wanted: {answer}")) }
            }
            Self::Two { messages_read, answered, .. } => {
                let (mut at, before) = (0, *answered);
                while let Some(head) = bytes.get(at..at + FRAME) {
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                    let Some(payload) = bytes.get(at + FRAME..at + FRAME + length) else { break };
                    let (kind, is_marked) = (head[3], head[4] & END_OR_ACK != 0);
                    match kind {
                        DATA if length > 0 => *messages_read += 1,
                        HEADERS if is_marked => *answered += 1,
                        SETTINGS if !is_marked => frame(out, SETTINGS, END_OR_ACK, 0, &[]),
                        PING if !is_marked => frame(out, PING, END_OR_ACK, 0, payload),
                        RST_STREAM | GOAWAY => return Err(format!("frame {kind}: {payload:?}")),
                        _ => {}
                    }
                    at += FRAME + length;
                }
                // A status without a message is an error's.
                if *answered > *messages_read {
                    return Err("an answer without a message".to_owned());
                }
                Ok((at, *answered - before))
            }
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
    out.extend_from_slice(&[length[1], length[2], length[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A string of HPACK, shorter than 127 bytes.
fn text(fields: &mut Vec<u8>, text: &str) {
    fields.push(u8::try_from(text.len()).expect("a field is short"));
    fields.extend_from_slice(text.as_bytes());
}

/// A request of Envoy as gRPC sends it: not compressed, the length, the message.
fn message(key: usize) -> Vec<u8> {
    let entries = vec![Entry { key: "user".into(), value: format!("user-{key}") }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { domain: "bench".into(), descriptors, hits_addend: 0 }.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a request is short");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

fn check(method: &str, policy: &str, key: usize) -> Vec<u8> {
    format!(
        "{method} /v1/check?policy={policy}&key=user-{key} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn throttle(count: u64, key: usize) -> Vec<u8> {
    let body =
        format!("{{\"key\":\"user-{key}\",\"max_burst\":{count},\"count_per_period\":{count},\"period\":86400}}");
    let length = body.len();
    format!("POST /throttle HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}
