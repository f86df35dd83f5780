//! A network of datagrams in memory, on tokio's time and drawn from a seed: it delays, loses, reorders and
//! is cut, in one direction or in both. quinn sends into it and receives from it as from a socket.
//!
//! Everything that happens is a line of a trace: when, from where to where, how many bytes, and what became
//! of it. What is in a datagram is no part of it: see tests/fleet_seeded.rs.

#![allow(clippy::disallowed_methods, reason = "the time is tokio's, which the test has paused")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What a datagram meets with.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Shortest way.
    pub delay: Duration,
    /// What is added at most; one datagram in fifty takes five times as much, and is overtaken.
    pub jitter: Duration,
    /// Per mille that are lost.
    pub loss: u64,
}

/// The network. Cheap to clone.
#[derive(Clone)]
pub struct Ether(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    sent: Notify,
    began: Instant,
}

struct State {
    weather: Weather,
    random: u64,
    stations: BTreeMap<SocketAddr, Station>,
    /// From where to where nothing gets through.
    cuts: BTreeSet<(SocketAddr, SocketAddr)>,
    on_the_way: BTreeMap<(Instant, u64), Datagram>,
    count: u64,
    bytes: u64,
    trace: Trace,
}

#[derive(Default)]
struct Station {
    /// Counts the sockets that were here: an earlier one is deaf and dumb.
    life: u64,
    inbox: VecDeque<Datagram>,
    waker: Option<Waker>,
}

struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    contents: Vec<u8>,
}

/// What happened: its hash, and its length.
#[derive(Clone, Default)]
pub struct Trace {
    pub hash: u64,
    pub lines: u64,
    /// All of it, where somebody wants to compare two.
    pub text: Option<String>,
}

impl Trace {
    fn line(&mut self, line: &str) {
        self.lines += 1;
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(text) = &mut self.text {
            text.push_str(line);
            text.push('\n');
        }
    }
}

impl Ether {
    /// An empty network; datagrams travel while [`Self::carry`] runs.
    pub fn new(seed: u64, weather: Weather, keep_text: bool) -> Self {
        let trace = Trace { hash: 0xcbf2_9ce4_8422_2325, text: keep_text.then(String::new), ..Trace::default() };
        let state = State {
            weather,
            random: seed,
            stations: BTreeMap::new(),
            cuts: BTreeSet::new(),
            on_the_way: BTreeMap::new(),
            count: 0,
            bytes: 0,
            trace,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), sent: Notify::new(), began: Instant::now() }))
    }

    /// Delivers what is due, for ever.
    pub async fn carry(self) {
        loop {
            let next = self.state().on_the_way.first_key_value().map(|((due, _), _)| *due);
            match next {
                None => self.0.sent.notified().await,
                Some(due) if due <= Instant::now() => self.deliver(),
                Some(due) => tokio::select! {
                    biased;
                    () = sleep_until(due) => {}
                    () = self.0.sent.notified() => {}
                },
            }
        }
    }

    fn deliver(&self) {
        let mut state = self.state();
        let Some((_, datagram)) = state.on_the_way.pop_first() else { return };
        let Some(station) = state.stations.get_mut(&datagram.to) else { return };
        station.inbox.push_back(datagram);
        if let Some(waker) = station.waker.take() {
            waker.wake();
        }
    }

    /// A socket at this address; one that was there before is cut off for good.
    pub fn socket(&self, address: SocketAddr) -> Arc<dyn AsyncUdpSocket> {
        let mut state = self.state();
        let station = state.stations.entry(address).or_default();
        *station = Station { life: station.life + 1, ..Station::default() };
        Arc::new(Socket { ether: self.clone(), address, life: station.life })
    }

    /// Takes the socket at this address away: nothing comes from there, nothing arrives.
    pub fn unplug(&self, address: SocketAddr) {
        let _ = self.socket(address);
    }

    /// Lets nothing through any more from these to those.
    pub fn cut(&self, from: &[SocketAddr], to: &[SocketAddr]) {
        let pairs = from.iter().flat_map(|from| to.iter().map(|to| (*from, *to)));
        self.state().cuts.extend(pairs.filter(|(from, to)| from != to));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.state().cuts.clear();
    }

    /// A number below `bound`, drawn from the seed.
    pub fn below(&self, bound: u64) -> u64 {
        self.state().below(bound)
    }

    /// Datagrams that were sent.
    pub fn count(&self) -> u64 {
        self.state().count
    }

    /// Bytes of all datagrams that were sent.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// The time since the network is there.
    pub fn now(&self) -> Duration {
        Instant::now() - self.0.began
    }

    /// Notes that something else has happened now.
    pub fn note(&self, what: &str) {
        let at = self.now().as_micros();
        self.state().trace.line(&format!("{at} {what}"));
    }

    pub fn trace(&self) -> Trace {
        self.state().trace.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nobody has panicked in here")
    }
}

impl State {
    fn below(&mut self, bound: u64) -> u64 {
        super::random::below(&mut self.random, bound)
    }

    /// How long a datagram takes; `None`: it does not arrive. As many numbers are drawn for each.
    fn fate(&mut self, from: SocketAddr, to: SocketAddr) -> Result<Duration, &'static str> {
        let Weather { delay, jitter, loss } = self.weather;
        let (lost, slow) = (self.below(1_000) < loss, self.below(50) == 0);
        let extra = Duration::from_micros(self.below(jitter.as_micros() as u64 + 1)) * if slow { 5 } else { 1 };
        match () {
            () if self.cuts.contains(&(from, to)) => Err("cut"),
            () if lost => Err("lost"),
            () => Ok(delay + extra),
        }
    }
}

/// One end of the network.
struct Socket {
    ether: Ether,
    address: SocketAddr,
    life: u64,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the socket at {}", self.address)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (from, to, len) = (self.address, transmit.destination, transmit.contents.len());
        assert!(transmit.segment_size.is_none_or(|size| size >= len), "one datagram at a time was promised");
        let mut state = self.ether.state();
        if state.stations.get(&from).is_none_or(|station| station.life != self.life) {
            return Ok(());
        }
        let fate = state.fate(from, to);
        let now = Instant::now();
        let word = fate.map_or_else(str::to_owned, |delay| delay.as_micros().to_string());
        let at = (now - self.ether.0.began).as_micros();
        state.trace.line(&format!("{at} {from} {to} {len} {word}"));
        state.count += 1;
        state.bytes += len as u64;
        if let Ok(delay) = fate {
            let key = (now + delay, state.count);
            state.on_the_way.insert(key, Datagram { from, to, contents: transmit.contents.to_vec() });
            self.ether.0.sent.notify_one();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.ether.state();
        let station = state.stations.get_mut(&self.address).expect("a socket was here");
        if station.life != self.life {
            return Poll::Pending;
        }
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let Some(Datagram { from, contents, .. }) = station.inbox.pop_front() else { break };
            let len = contents.len();
            buffer[..len].copy_from_slice(&contents);
            *meta = RecvMeta { addr: from, len, stride: len, ..RecvMeta::default() };
            count += 1;
        }
        if count == 0 {
            station.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
