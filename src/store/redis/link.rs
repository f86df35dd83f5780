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

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::address::{Address, Dialer};
use super::heart::{Heart, Lost, Way};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::breaker::Fault;

/// Longest wait for a connection to stand: several trips to a server that is far away.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands that one `WAIT` may stand behind.
const BATCH: usize = 128;

/// Commands in flight on one connection.
const IN_FLIGHT: usize = 4_096;

/// A command on its way, with what must precede it.
pub(crate) struct Letter {
    pub(crate) command: Cmd,
    /// Send `ASKING` before it.
    pub(crate) asking: bool,
}

/// The reply to a letter.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Replicas that have it, when that was awaited.
    pub(crate) replicas: Option<i64>,
    /// What the server took to answer; the wait for a replica is not in it.
    pub(crate) took: Micros,
}

type Waiting = (Letter, oneshot::Sender<Result<Answer, Lost>>);

/// The connections to one server.
pub(crate) struct Link {
    direct: Wire,
    confirmed: Option<mpsc::Sender<Waiting>>,
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
    pub(crate) async fn dial(
        making: Making<'_>,
        address: &Address,
        on_fault: impl Fn(Fault, &'static str) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let Making { dialer, clock, generation, confirming } = making;
        let client = Client::open(dialer.info(address)?)?;
        let on_fault = Arc::new(on_fault);
        let of_pushes = on_fault.clone();
        let told = Arc::new(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                of_pushes(Fault::Lost, "the connection was closed");
            }
            Ok::<(), ()>(())
        });
        // No response timeout: a slow reply is a sign of life, and it is the heart that gives up.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(IN_FLIGHT)
            .set_push_sender(told);
        let heart = Arc::new(Heart::new(clock));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let direct = Wire { connection, heart: heart.clone(), way: Way::Direct, clock };
        let mut confirmed = None;
        if let Some(patience) = confirming {
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let waiting = Wire { connection, way: Way::Confirmed, ..direct.clone() };
            let (sender, queue) = mpsc::channel(IN_FLIGHT);
            let gatherer =
                Gatherer { waiting, direct: direct.clone(), late: None, patience: replica_patience(patience) };
            tokio::spawn(gatherer.run(queue));
            confirmed = Some(sender);
        }
        tokio::spawn(heart.beat(move |fault, what| on_fault(fault, what)));
        Ok(Self { direct, confirmed, generation })
    }

    /// Sends `letter` and awaits its reply.
    pub(crate) async fn send(&self, letter: Letter) -> Result<Answer, Lost> {
        let left = self.direct.clock.now();
        let value = if letter.asking {
            let mut pipeline = Pipeline::with_capacity(2);
            push(&mut pipeline, letter);
            self.send_all(&pipeline).await?.pop().ok_or(Lost)?
        } else {
            self.direct.ask(letter.command).await?
        };
        Ok(Answer { value, replicas: None, took: self.direct.since(left) })
    }

    /// Sends `letter` and awaits its reply and then a replica, but not for long.
    pub(crate) async fn send_confirmed(&self, letter: Letter) -> Result<Answer, Lost> {
        let Some(gatherer) = &self.confirmed else { return self.send(letter).await };
        let (reply, answer) = oneshot::channel();
        gatherer.send((letter, reply)).await.map_err(|_| Lost)?;
        answer.await.map_err(|_| Lost)?
    }

    /// Sends several commands at once: all replies, in order.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Lost> {
        self.direct.ask_all(pipeline).await
    }

    /// Gives it up: whoever awaits a reply has lost it.
    pub(crate) fn end(&self) {
        self.direct.heart.end();
    }
}

/// One connection of a link.
#[derive(Clone)]
struct Wire {
    connection: MultiplexedConnection,
    heart: Arc<Heart>,
    way: Way,
    clock: Clock,
}

impl Wire {
    async fn ask(&self, command: Cmd) -> Result<Value, Lost> {
        let mut connection = self.connection.clone();
        self.heart.await_reply(self.way, connection.send_packed_command(&command)).await
    }

    async fn ask_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Lost> {
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(pipeline, 0, pipeline.len());
        self.heart.await_reply(self.way, replies).await
    }

    fn since(&self, left: Instant) -> Micros {
        self.clock.now().since(left)
    }
}

/// How long `WAIT` may take when a call may take `patience`: its answer must still find the caller.
fn replica_patience(patience: Duration) -> Duration {
    (patience / 2).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

fn push(pipeline: &mut Pipeline, letter: Letter) {
    if letter.asking {
        pipeline.add_command(redis::cmd("ASKING"));
    }
    pipeline.add_command(letter.command);
}

type Callers = Vec<(usize, oneshot::Sender<Result<Answer, Lost>>)>;

/// Sends confirmed letters, as many as have gathered at a time.
struct Gatherer {
    waiting: Wire,
    direct: Wire,
    /// A `WAIT` that had no answer in time: its connection is not to be used before it has.
    late: Option<Pin<Box<dyn Future<Output = i64> + Send>>>,
    patience: Duration,
}

impl Gatherer {
    /// Works until the link is dropped.
    async fn run(mut self, mut queue: mpsc::Receiver<Waiting>) {
        let mut batch = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut batch, BATCH).await > 0 {
            let (pipeline, callers) = gather(&mut batch);
            if callers.is_empty() {
                continue;
            }
            if self.is_late().await {
                let left = self.direct.clock.now();
                let values = self.direct.ask_all(&pipeline).await;
                deliver(callers, values, 0, self.direct.since(left));
            } else {
                self.send(pipeline, callers).await;
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
    async fn send(&mut self, pipeline: Pipeline, callers: Callers) {
        let left = self.waiting.clock.now();
        let batch = self.waiting.ask_all(&pipeline);
        let mut wait = Box::pin(wait_for_replica(self.waiting.clone(), self.patience));
        tokio::pin!(batch);
        let (mut values, mut replicas) = (None, None);
        // Polled in this order, the batch is written first.
        while values.is_none() {
            tokio::select! {
                biased;
                reply = &mut batch => values = Some(reply),
                number = &mut wait, if replicas.is_none() => replicas = Some(number),
            }
        }
        let took = self.waiting.since(left);
        // Only from here on it is the replica that is waited for: the server may be slow, or far away.
        if replicas.is_none() {
            replicas = timeout(self.patience, &mut wait).await.ok();
        }
        deliver(callers, values.unwrap_or(Err(Lost)), replicas.unwrap_or(0), took);
        if replicas.is_none() {
            self.late = Some(wait);
        }
    }
}

/// How many replicas have what was written before; 0 when that is not known.
async fn wait_for_replica(wire: Wire, patience: Duration) -> i64 {
    let mut command = redis::cmd("WAIT");
    command.arg(1).arg(u64::try_from(patience.as_millis()).unwrap_or(50));
    match wire.ask(command).await {
        Ok(Value::Int(replicas)) => replicas,
        _ => 0,
    }
}

/// The letters that somebody still waits for; the others have not left, and never will.
fn gather(batch: &mut Vec<Waiting>) -> (Pipeline, Callers) {
    let mut pipeline = Pipeline::with_capacity(batch.len());
    let mut callers = Vec::with_capacity(batch.len());
    for (letter, caller) in batch.drain(..).filter(|(_, caller)| !caller.is_closed()) {
        push(&mut pipeline, letter);
        callers.push((pipeline.len() - 1, caller));
    }
    (pipeline, callers)
}

fn deliver(callers: Callers, values: Result<Vec<Value>, Lost>, replicas: i64, took: Micros) {
    let mut values = values.unwrap_or_default();
    for (index, caller) in callers {
        let answer = match values.get_mut(index) {
            Some(value) => Ok(Answer { value: std::mem::take(value), replicas: Some(replicas), took }),
            None => Err(Lost),
        };
        // The caller may have given up.
        let _ = caller.send(answer);
    }
}
