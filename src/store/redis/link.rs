//! The connections to one Redis server. There are two of them, or one where nothing is confirmed.
//!
//! The direct connection sends each command at once. The confirmed one gathers commands while a `WAIT` is under way,
//! then sends them with one `WAIT` behind them. It is separate, because the server reads nothing more from a
//! connection that waits, and may end a `WAIT` up to 100 ms late when it is idle. A reply may take as long as the
//! link lives; `heart.rs` decides when that ends. Nothing is retried. Knows neither breaker nor cluster. Called by
//! `master.rs`.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address::Address;
use super::dialer::Dialer;
use super::evalsha::Loaded;
use super::frame::Reply;
use super::heart::{ConnectionLost, Heart, Way};
use super::stream;
use super::wire::{ASKING, Answer, Pending, Wire};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::breaker::Fault;

/// Longest wait for a connection: enough for several round trips to a distant server.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Most commands before one `WAIT`.
const BATCH: usize = 128;

/// A command for the confirmed connection, and whether `ASKING` must precede it.
type ConfirmedCommand = (bool, Box<dyn Pending>);

/// The connections to one server.
pub(crate) struct Link {
    direct: Arc<Wire>,
    confirmed: Option<mpsc::UnboundedSender<ConfirmedCommand>>,
    heart: Arc<Heart>,
    /// Counts the links to this server.
    pub(crate) generation: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// What is needed to dial a server.
pub(crate) struct DialOptions<'a> {
    pub(crate) dialer: &'a Dialer,
    pub(crate) clock: Clock,
    pub(crate) generation: u64,
    /// How long the sender of a confirmed command waits; `None` when nothing is confirmed.
    pub(crate) confirming: Option<Duration>,
}

impl Link {
    /// Connects. `on_fault` is called when a connection breaks or is given up.
    ///
    /// # Errors
    /// The reason for people why it could not connect.
    pub(crate) async fn dial(
        options: DialOptions<'_>,
        address: &Address,
        on_fault: impl Fn(Fault, &'static str) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let DialOptions { dialer, clock, generation, confirming } = options;
        let on_fault = Arc::new(on_fault);
        let heart = Arc::new(Heart::new(clock));
        // Ends the connections when this is dropped: after an error, and when the caller gives up.
        let ends = EndOnDrop(Some(heart.clone()));
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
            let loaded = Loaded::default();
            tokio::spawn(Gatherer { waiting, direct, clock, late: None, patience, loaded }.run(queue));
            confirmed = Some(sender);
        }
        tokio::spawn(heart.clone().beat(move |fault, what| on_fault(fault, what)));
        ends.disarm();
        Ok(Self { direct, confirmed, heart, generation })
    }

    /// Sends a command at `now`, preceded by `ASKING` if asked for. Returns at once.
    pub(crate) fn send(&self, now: Instant, asking: bool, pending: Box<dyn Pending>) {
        self.direct.send(now, asking, pending);
    }

    /// The same, but the answer comes only when a replica has confirmed it, or has not done so for some time.
    pub(crate) fn send_confirmed(&self, now: Instant, asking: bool, pending: Box<dyn Pending>) {
        let Some(gatherer) = &self.confirmed else { return self.send(now, asking, pending) };
        if let Err(mpsc::error::SendError((_, pending))) = gatherer.send((asking, pending)) {
            pending.handle_answer(Err(ConnectionLost));
        }
    }

    /// Whether calls about several keys may be one command to this server from now on. What is confirmed leaves alone.
    pub(crate) fn set_joins(&self, joins: bool) {
        self.direct.set_joins(joins);
    }

    /// Whether they may. An error that was the answer to one ends it.
    pub(crate) fn joins(&self) -> bool {
        self.direct.joins()
    }

    /// Sends several commands at once, and returns all replies in order.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, ConnectionLost> {
        self.direct.ask_all(&pipeline.get_packed_pipeline(), pipeline.len()).await
    }

    /// Ends both connections: all awaited replies are lost.
    pub(crate) fn end(&self) {
        self.heart.end();
    }
}

/// Ends a half-made link when it is dropped, unless it was disarmed.
struct EndOnDrop(Option<Arc<Heart>>);

impl EndOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(heart) = &self.0 {
            heart.end();
        }
    }
}

/// Opens a connection and authenticates.
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
    let hello = handshake(dialer);
    let answers = wire.ask_all(&hello.get_packed_pipeline(), hello.len()).await;
    for answer in answers.map_err(|ConnectionLost| "the connection broke")? {
        if let Value::ServerError(error) = answer {
            return Err(RedisError::from(error).to_string());
        }
    }
    Ok(wire)
}

/// The first commands on a connection. They choose RESP3, because with it all versions of Redis send replies of the
/// same form.
fn handshake(dialer: &Dialer) -> Pipeline {
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

/// How long `WAIT` may take when the caller waits for `patience`: the answer must still reach the caller in time.
fn replica_patience(patience: Duration) -> Duration {
    (patience / 2).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

/// Sends confirmed commands, as many at a time as have gathered.
struct Gatherer {
    waiting: Arc<Wire>,
    direct: Arc<Wire>,
    clock: Clock,
    /// A `WAIT` that was not answered in time. Its connection cannot be used before it is.
    late: Option<Pin<Box<dyn Future<Output = i64> + Send>>>,
    patience: Duration,
    /// On either connection: it is the server that loads.
    loaded: Loaded,
}

/// Commands that are sent together, and who awaits which of the replies.
struct Batch {
    bytes: Vec<u8>,
    commands: usize,
    callers: Vec<(usize, Box<dyn Pending>)>,
}

impl Gatherer {
    /// Runs until the link is dropped.
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<ConfirmedCommand>) {
        let mut commands = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut commands, BATCH).await > 0 {
            let batch = gather(&mut commands, &mut self.loaded);
            if self.is_late().await {
                let left = self.clock.now();
                let values = self.direct.ask_all(&batch.bytes, batch.commands).await;
                let now = self.clock.now();
                batch.deliver(values, 0, (now, now.since(left)));
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

    /// Sends a batch with a `WAIT` behind it. Once the batch is answered, the reply to the `WAIT` is awaited for a
    /// limited time.
    async fn send(&mut self, batch: Batch) {
        let left = self.clock.now();
        let (mut values, mut replicas) = (None, None);
        let mut wait = Box::pin(wait_for_replica(self.waiting.clone(), self.patience));
        {
            let asked = self.waiting.ask_all(&batch.bytes, batch.commands);
            tokio::pin!(asked);
            // `biased` polls in this order, so the batch is written before the `WAIT`.
            while values.is_none() {
                tokio::select! {
                    biased;
                    reply = &mut asked => values = Some(reply),
                    number = &mut wait, if replicas.is_none() => replicas = Some(number),
                }
            }
        }
        let took = self.clock.now().since(left);
        // The time limit starts only now, because before this the server may have been slow or distant; from here on
        // only the replica is waited for.
        if replicas.is_none() {
            replicas = timeout(self.patience, &mut wait).await.ok();
        }
        batch.deliver(values.unwrap_or(Err(ConnectionLost)), replicas.unwrap_or(0), (self.clock.now(), took));
        if replicas.is_none() {
            self.late = Some(wait);
        }
    }
}

/// How many replicas have the writes that were sent before; 0 when that is not known.
async fn wait_for_replica(wire: Arc<Wire>, patience: Duration) -> i64 {
    let mut command = Cmd::new();
    command.arg("WAIT").arg(1).arg(u64::try_from(patience.as_millis()).unwrap_or(50));
    match wire.ask_all(&command.get_packed_command(), 1).await.as_deref() {
        Ok([Value::Int(replicas)]) => *replicas,
        _ => 0,
    }
}

fn gather(commands: &mut Vec<ConfirmedCommand>, loaded: &mut Loaded) -> Batch {
    let mut batch = Batch { bytes: Vec::new(), commands: 0, callers: Vec::with_capacity(commands.len()) };
    for (asking, pending) in commands.drain(..) {
        if pending.unusual().is_some_and(|script| loaded.load(&mut batch.bytes, script)) {
            batch.commands += 1;
        }
        if asking {
            batch.bytes.extend_from_slice(ASKING);
            batch.commands += 1;
        }
        pending.write(&mut batch.bytes);
        batch.callers.push((batch.commands, pending));
        batch.commands += 1;
    }
    batch
}

impl Batch {
    fn deliver(self, values: Result<Vec<Value>, ConnectionLost>, replicas: i64, (at, took): (Instant, Micros)) {
        let mut values = values.unwrap_or_default();
        for (index, pending) in self.callers {
            pending.handle_answer(match values.get_mut(index) {
                Some(value) => {
                    let reply = Reply::Value(std::mem::take(value));
                    Ok(Answer { reply, replicas: Some(replicas), took, at, is_error_of_several: false })
                }
                None => Err(ConnectionLost),
            });
        }
    }
}
