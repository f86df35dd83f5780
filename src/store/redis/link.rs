//! The connections to one Redis server: how commands get there and answers come back, in what groups.
//!
//! Two ways lead there. The direct one writes a command and awaits its reply. The confirmed one
//! gathers commands while a `WAIT` is under way, then sends them with one `WAIT` behind them. It has a
//! connection of its own, because the server reads nothing more from one that waits, and ends a
//! `WAIT` up to 100 ms late when it is idle. A reply may take as long as the link lives, and `heart.rs`
//! says when that ends. Nothing is retried. Knows neither breaker nor cluster. Called by `master.rs`.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address::Address;
use super::dialer::Dialer;
use super::frame::Reply;
use super::heart::{Heart, Lost, Way};
use super::stream;
use super::wire::{ASKING, Answer, Awaits, Wire};
use crate::clock::Clock;
use crate::core::time::Micros;
use crate::store::breaker::Fault;

/// Longest wait for a connection to stand: several trips to a server that is far away.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands that one `WAIT` may stand behind.
const BATCH: usize = 128;

/// A command by the confirmed way, and whether `ASKING` must precede it.
type Letter = (bool, Box<dyn Awaits>);

/// The connections to one server.
pub(crate) struct Link {
    direct: Arc<Wire>,
    confirmed: Option<mpsc::UnboundedSender<Letter>>,
    heart: Arc<Heart>,
    /// Which link to this server it is.
    pub(crate) generation: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a link is made.
pub(crate) struct Making<'a> {
    pub(crate) dialer: &'a Dialer,
    pub(crate) clock: Clock,
    pub(crate) generation: u64,
    /// How long a confirmed letter's sender would wait; `None`: no letter is confirmed.
    pub(crate) confirming: Option<Duration>,
}

impl Link {
    /// Connects; calls `on_fault` when a connection has gone, or was given up.
    ///
    /// # Errors
    /// What keeps it from connecting, for people.
    pub(crate) async fn dial(
        making: Making<'_>,
        address: &Address,
        on_fault: impl Fn(Fault, &'static str) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let Making { dialer, clock, generation, confirming } = making;
        let on_fault = Arc::new(on_fault);
        let heart = Arc::new(Heart::new(clock));
        // Ended with this when it is dropped: by an error, too, or when whoever dials gives up.
        let ends = EndsWithout(Some(heart.clone()));
        let wire = |way| {
            let (heart, on_fault) = (heart.clone(), on_fault.clone());
            let opened = open(dialer, address, clock, (heart, way), move || {
                on_fault(Fault::Lost, "the connection was closed");
            });
            async { timeout(CONNECT_TIMEOUT, opened).await.unwrap_or_else(|_| Err("no answer in time".to_owned())) }
        };
        let direct = wire(Way::Direct).await?;
        let mut confirmed = None;
        if let Some(patience) = confirming {
            let waiting = wire(Way::Confirmed).await?;
            let (sender, queue) = mpsc::unbounded_channel();
            let (direct, patience) = (direct.clone(), replica_patience(patience));
            tokio::spawn(Gatherer { waiting, direct, clock, late: None, patience }.run(queue));
            confirmed = Some(sender);
        }
        tokio::spawn(heart.clone().beat(move |fault, what| on_fault(fault, what)));
        ends.not_any_more();
        Ok(Self { direct, confirmed, heart, generation })
    }

    /// Sends a command; `asking`: behind an `ASKING`. Returns at once.
    pub(crate) fn send(&self, asking: bool, awaits: Box<dyn Awaits>) {
        self.direct.send(asking, awaits);
    }

    /// The same, and the answer comes once a replica has it, too, or has not for some time.
    pub(crate) fn send_confirmed(&self, asking: bool, awaits: Box<dyn Awaits>) {
        let Some(gatherer) = &self.confirmed else { return self.send(asking, awaits) };
        if let Err(mpsc::error::SendError((_, awaits))) = gatherer.send((asking, awaits)) {
            awaits.handle_answer(Err(Lost));
        }
    }

    /// Sends several commands at once: all replies, in order.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Lost> {
        self.direct.ask_all(&pipeline.get_packed_pipeline(), pipeline.len()).await
    }

    /// Gives it up: whoever awaits a reply has lost it.
    pub(crate) fn end(&self) {
        self.heart.end();
    }
}

/// Ends what is dialled unless it came to stand.
struct EndsWithout(Option<Arc<Heart>>);

impl EndsWithout {
    fn not_any_more(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsWithout {
    fn drop(&mut self) {
        if let Some(heart) = &self.0 {
            heart.end();
        }
    }
}

/// Opens a connection, and is let in.
async fn open(
    dialer: &Dialer,
    address: &Address,
    clock: Clock,
    way: (Arc<Heart>, Way),
    on_break: impl FnOnce() + Send + 'static,
) -> Result<Arc<Wire>, String> {
    let stream =
        stream::connect(&*dialer.network, address, dialer.tls.as_ref()).await.map_err(|error| error.to_string())?;
    let wire = Wire::new(stream, way, clock, on_break);
    let hello = greeting(dialer);
    let answers = wire.ask_all(&hello.get_packed_pipeline(), hello.len()).await;
    for answer in answers.map_err(|Lost| "the connection broke")? {
        if let Value::ServerError(error) = answer {
            return Err(RedisError::from(error).to_string());
        }
    }
    Ok(wire)
}

/// What a server is told first. RESP3, because from there on every server speaks alike.
fn greeting(dialer: &Dialer) -> Pipeline {
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(password) = &dialer.password {
        hello.arg("AUTH").arg(dialer.user.as_deref().unwrap_or("default")).arg(password);
    }
    let mut pipeline = Pipeline::new();
    pipeline.add_command(hello);
    if dialer.database != 0 {
        pipeline.cmd("SELECT").arg(dialer.database);
    }
    pipeline
}

/// How long `WAIT` may take when a call may take `patience`: its answer must still find the caller.
fn replica_patience(patience: Duration) -> Duration {
    (patience / 2).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

/// Sends confirmed letters, as many as have gathered at a time.
struct Gatherer {
    waiting: Arc<Wire>,
    direct: Arc<Wire>,
    clock: Clock,
    /// A `WAIT` that had no answer in time: its connection is not to be used before it has.
    late: Option<Pin<Box<dyn Future<Output = i64> + Send>>>,
    patience: Duration,
}

/// Letters in one go: their commands, and who awaits which of the answers.
struct Batch {
    bytes: Vec<u8>,
    commands: usize,
    callers: Vec<(usize, Box<dyn Awaits>)>,
}

impl Gatherer {
    /// Works until the link is dropped.
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Letter>) {
        let mut letters = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut letters, BATCH).await > 0 {
            let batch = gather(&mut letters);
            if self.is_late().await {
                let left = self.clock.now();
                let values = self.direct.ask_all(&batch.bytes, batch.commands).await;
                batch.deliver(values, 0, self.clock.now().since(left));
            } else {
                self.send(batch).await;
            }
        }
    }

    async fn is_late(&mut self) -> bool {
        if let Some(late) = &mut self.late {
            tokio::select! {
                biased;
                _ = late => self.late = None,
                () = ready(()) => {}
            }
        }
        self.late.is_some()
    }

    /// Sends a batch with a `WAIT` behind it, and awaits that for a limited time once the batch is answered.
    async fn send(&mut self, batch: Batch) {
        let left = self.clock.now();
        let (mut values, mut replicas) = (None, None);
        let mut wait = Box::pin(wait_for_replica(self.waiting.clone(), self.patience));
        {
            let asked = self.waiting.ask_all(&batch.bytes, batch.commands);
            tokio::pin!(asked);
            // Polled in this order, the batch is written first.
            while values.is_none() {
                tokio::select! {
                    biased;
                    reply = &mut asked => values = Some(reply),
                    number = &mut wait, if replicas.is_none() => replicas = Some(number),
                }
            }
        }
        let took = self.clock.now().since(left);
        // Only from here on it is the replica that is waited for: the server may be slow, or far away.
        if replicas.is_none() {
            replicas = timeout(self.patience, &mut wait).await.ok();
        }
        batch.deliver(values.unwrap_or(Err(Lost)), replicas.unwrap_or(0), took);
        if replicas.is_none() {
            self.late = Some(wait);
        }
    }
}

/// How many replicas have what was written before; 0 when that is not known.
async fn wait_for_replica(wire: Arc<Wire>, patience: Duration) -> i64 {
    let mut command = Cmd::new();
    command.arg("WAIT").arg(1).arg(u64::try_from(patience.as_millis()).unwrap_or(50));
    match wire.ask_all(&command.get_packed_command(), 1).await.as_deref() {
        Ok([Value::Int(replicas)]) => *replicas,
        _ => 0,
    }
}

fn gather(letters: &mut Vec<Letter>) -> Batch {
    let mut batch = Batch { bytes: Vec::new(), commands: 0, callers: Vec::with_capacity(letters.len()) };
    for (asking, awaits) in letters.drain(..) {
        if asking {
            batch.bytes.extend_from_slice(ASKING);
            batch.commands += 1;
        }
        awaits.write(&mut batch.bytes);
        batch.callers.push((batch.commands, awaits));
        batch.commands += 1;
    }
    batch
}

impl Batch {
    fn deliver(self, values: Result<Vec<Value>, Lost>, replicas: i64, took: Micros) {
        let mut values = values.unwrap_or_default();
        for (index, awaits) in self.callers {
            awaits.handle_answer(match values.get_mut(index) {
                Some(value) => {
                    let reply = Reply::Value(std::mem::take(value));
                    Ok(Answer { reply, replicas: Some(replicas), took })
                }
                None => Err(Lost),
            });
        }
    }
}
