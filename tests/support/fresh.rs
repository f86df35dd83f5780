//! Clients that ask for another key each time, so that every check must ask the store: for loading it to the brim.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::clock::Watch;
use super::process::Daemon;
use super::resp::{Decoder, Reply, encode};

/// What such clients were answered.
#[derive(Debug, Default)]
pub struct Tally {
    pub admitted: u64,
    /// Those of them that the store answered in time, not the share of a fresh key.
    pub by_store: u64,
    /// Denials by their reason.
    pub denied: BTreeMap<String, u64>,
    pub longest: Duration,
    /// The longest wait that a denial told.
    pub longest_retry_ms: i64,
    /// The latest that a client sent after it was due.
    pub late: Duration,
    pub length: Duration,
}

impl Tally {
    fn merge(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.by_store += other.by_store;
        for (reason, count) in other.denied {
            *self.denied.entry(reason).or_default() += count;
        }
        self.longest = self.longest.max(other.longest);
        self.longest_retry_ms = self.longest_retry_ms.max(other.longest_retry_ms);
        self.late = self.late.max(other.late);
    }

    fn note(&mut self, reply: &Reply, took: Duration) {
        let fields = reply.items();
        self.longest = self.longest.max(took);
        if fields[0] == Reply::Int(0) {
            self.admitted += 1;
            self.by_store += u64::from(fields[9].text() == "store");
        } else {
            *self.denied.entry(fields[7].text()).or_default() += 1;
            self.longest_retry_ms = self.longest_retry_ms.max(fields[5].int());
        }
    }

    /// Denials.
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.denied.values().sum()
    }

    /// Admitted in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.admitted as f64 / self.length.as_secs_f64()
    }

    /// Admitted by the store in a second.
    #[must_use]
    pub fn rate_of_store(&self) -> f64 {
        self.by_store as f64 / self.length.as_secs_f64()
    }
}

/// Loads the daemon from so many connections with checks of `policy`, each of a key of its own: so many a second of
/// all of them together, answered or not, sixteen at once.
pub fn load(daemon: &Daemon, (policy, name): (&str, &str), connections: usize, rate: f64, length: Duration) -> Tally {
    let watch = Watch::start();
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..connections)
            .map(|client| {
                let stream = UnixStream::connect(daemon.socket()).expect("the daemon accepts");
                stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out is not zero");
                let part = 1.0 / connections as f64;
                let ask = move |count: usize, from: u64| batch(policy, &format!("{name}-{client}"), from, count);
                // They come one after another, as clients do that know nothing of each other.
                let phase = client as f64 * part;
                scope.spawn(move || paced(&stream, ask, (rate * part, phase), length))
            })
            .collect();
        for client in clients {
            tally.merge(client.join().expect("a client ended by itself"));
        }
    });
    tally.length = watch.elapsed();
    tally
}

fn batch(policy: &str, name: &str, from: u64, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in from..from + count as u64 {
        encode(&mut bytes, &[b"RATION.CHECK", policy.as_bytes(), format!("{name}-{number}").as_bytes()]);
    }
    bytes
}

fn paced(
    stream: &UnixStream,
    ask: impl Fn(usize, u64) -> Vec<u8>,
    (rate, phase): (f64, f64),
    length: Duration,
) -> Tally {
    const AT_ONCE: usize = 16;
    let (sent, to_answer) = mpsc::channel();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut tally, mut decoder) = (Tally::default(), Decoder::default());
            for watch in to_answer {
                let watch: Watch = watch;
                for _ in 0..AT_ONCE {
                    let reply = next(stream, &mut decoder);
                    tally.note(&reply, watch.elapsed());
                }
            }
            tally
        });
        let (watch, mut writer, mut late) = (Watch::start(), stream, Duration::ZERO);
        for index in 0_u64.. {
            let due = Duration::from_secs_f64((index as f64 + phase) * AT_ONCE as f64 / rate);
            if due >= length {
                break;
            }
            watch.pause_until(due);
            late = late.max(watch.elapsed().saturating_sub(due));
            sent.send(Watch::start()).expect("the reader waits");
            writer.write_all(&ask(AT_ONCE, index * AT_ONCE as u64)).expect("the daemon reads");
        }
        drop(sent);
        Tally { late, ..reader.join().expect("a reader ended by itself") }
    })
}

fn next(mut stream: &UnixStream, decoder: &mut Decoder) -> Reply {
    loop {
        if let Some(reply) = decoder.next() {
            return reply;
        }
        assert!(decoder.fill(&mut stream).expect("an answer"), "the daemon closed the connection");
    }
}
