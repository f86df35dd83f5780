//! The connections to one Redis server: how commands get there and answers come back, in what groups.
//!
//! Two ways lead there. The direct one writes a command and awaits its reply. The confirmed one
//! gathers commands while a `WAIT` is under way, then sends them with one `WAIT` behind them. It has a
//! connection of its own, because the server reads nothing more from one that waits, and ends a
//! `WAIT` up to 100 ms late when it is idle. Nothing is retried. Knows neither breaker nor cluster.
//! Called by `master.rs`.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{mpsc, oneshot};

use super::address::{Address, Dialer};

/// Longest wait for a connection to stand.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

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
}

/// Nobody knows what became of the letter: the connection broke.
#[derive(Debug)]
pub(crate) struct Lost;

type Waiting = (Letter, oneshot::Sender<Result<Answer, Lost>>);

/// The connections to one server.
pub(crate) struct Link {
    direct: MultiplexedConnection,
    confirmed: Option<mpsc::Sender<Waiting>>,
    /// Which link to this server it is.
    pub(crate) generation: u64,
}

impl Link {
    /// Connects, for confirmed letters too when `confirming`; calls `on_lost` when a connection has gone.
    pub(crate) async fn dial(
        dialer: &Dialer,
        address: &Address,
        generation: u64,
        patience: Duration,
        confirming: bool,
        on_lost: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let client = Client::open(dialer.info(address)?)?;
        let told = Arc::new(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_lost();
            }
            Ok::<(), ()>(())
        });
        // The response timeout only cleans up: callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(patience.max(Duration::from_secs(1))))
            .set_pipeline_buffer_size(IN_FLIGHT)
            .set_push_sender(told);
        let direct = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut confirmed = None;
        if confirming {
            let waiting = client.get_multiplexed_async_connection_with_config(&config).await?;
            let (sender, queue) = mpsc::channel(IN_FLIGHT);
            let gatherer =
                Gatherer { waiting, direct: direct.clone(), late: None, patience: replica_patience(patience) };
            tokio::spawn(gatherer.run(queue));
            confirmed = Some(sender);
        }
        Ok(Self { direct, confirmed, generation })
    }

    /// Sends `letter` and awaits its reply.
    pub(crate) async fn send(&self, letter: Letter) -> Result<Answer, Lost> {
        if letter.asking {
            let mut pipeline = Pipeline::with_capacity(2);
            push(&mut pipeline, letter);
            let mut values = self.send_all(&pipeline).await?;
            return Ok(Answer { value: values.pop().ok_or(Lost)?, replicas: None });
        }
        let value = self.direct.clone().send_packed_command(&letter.command).await.map_err(|_| Lost)?;
        Ok(Answer { value, replicas: None })
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
        self.direct.clone().send_packed_commands(pipeline, 0, pipeline.len()).await.map_err(|_| Lost)
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
    waiting: MultiplexedConnection,
    direct: MultiplexedConnection,
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
                let values = self.direct.send_packed_commands(&pipeline, 0, pipeline.len()).await;
                deliver(callers, values.ok(), 0);
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

    /// Sends a batch with a `WAIT` behind it, and awaits that for a limited time.
    async fn send(&mut self, pipeline: Pipeline, callers: Callers) {
        let mut connection = self.waiting.clone();
        let batch = connection.send_packed_commands(&pipeline, 0, pipeline.len());
        let mut wait = Box::pin(wait_for_replica(self.waiting.clone(), self.patience));
        let too_late = tokio::time::sleep(self.patience);
        tokio::pin!(batch, too_late);
        let (mut values, mut replicas) = (None, None);
        // Polled in this order, the batch is written first.
        while values.is_none() || (replicas.is_none() && !too_late.is_elapsed()) {
            tokio::select! {
                biased;
                reply = &mut batch, if values.is_none() => values = Some(reply.ok()),
                number = &mut wait, if replicas.is_none() => replicas = Some(number),
                () = &mut too_late, if !too_late.is_elapsed() => {}
            }
        }
        deliver(callers, values.flatten(), replicas.unwrap_or(0));
        if replicas.is_none() {
            self.late = Some(wait);
        }
    }
}

/// How many replicas have what was written before; 0 when that is not known.
async fn wait_for_replica(mut connection: MultiplexedConnection, patience: Duration) -> i64 {
    let mut command = redis::cmd("WAIT");
    command.arg(1).arg(u64::try_from(patience.as_millis()).unwrap_or(50));
    match connection.send_packed_command(&command).await {
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

fn deliver(callers: Callers, values: Option<Vec<Value>>, replicas: i64) {
    let mut values = values.unwrap_or_default();
    for (index, caller) in callers {
        let answer = match values.get_mut(index) {
            Some(value) => Ok(Answer { value: std::mem::take(value), replicas: Some(replicas) }),
            None => Err(Lost),
        };
        // The caller may have given up.
        let _ = caller.send(answer);
    }
}
