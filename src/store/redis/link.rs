//! One connection to one Redis server: how bytes get there and answers come back, in what groups.
//!
//! Two ways lead through it. The direct one writes a command and awaits its reply. The confirmed one
//! gathers commands while a `WAIT` is under way and then sends them with one `WAIT` behind them: a
//! connection is blocked on the server while it waits, so there must never be two. Nothing is
//! retried. Knows neither breaker nor cluster. Called by `master.rs`.

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

/// One connection.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    confirmed: mpsc::Sender<Waiting>,
    /// Which connection to this server it is.
    pub(crate) generation: u64,
}

impl Link {
    /// Connects, and calls `on_lost` once when the connection has gone.
    pub(crate) async fn dial(
        dialer: &Dialer,
        address: &Address,
        generation: u64,
        patience: Duration,
        on_lost: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let client = Client::open(dialer.info(address)?)?;
        let told = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_lost();
            }
            Ok::<(), ()>(())
        };
        // The response timeout only cleans up: callers have deadlines of their own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(patience.max(Duration::from_secs(1))))
            .set_pipeline_buffer_size(IN_FLIGHT)
            .set_push_sender(told);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let (confirmed, queue) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(send_confirmed(connection.clone(), queue, replica_patience(patience)));
        Ok(Self { connection, confirmed, generation })
    }

    /// Sends `letter` and awaits its reply.
    pub(crate) async fn send(&self, letter: Letter) -> Result<Answer, Lost> {
        if letter.asking {
            let mut pipeline = Pipeline::with_capacity(2);
            push(&mut pipeline, letter);
            let mut values = self.send_all(&pipeline).await?;
            return Ok(Answer { value: values.pop().ok_or(Lost)?, replicas: None });
        }
        let value = self.connection.clone().send_packed_command(&letter.command).await.map_err(|_| Lost)?;
        Ok(Answer { value, replicas: None })
    }

    /// Sends `letter` and awaits its reply and then a replica, but not for long.
    pub(crate) async fn send_confirmed(&self, letter: Letter) -> Result<Answer, Lost> {
        let (reply, answer) = oneshot::channel();
        self.confirmed.send((letter, reply)).await.map_err(|_| Lost)?;
        answer.await.map_err(|_| Lost)?
    }

    /// Sends several commands at once: all replies, in order.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Lost> {
        self.connection.clone().send_packed_commands(pipeline, 0, pipeline.len()).await.map_err(|_| Lost)
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

/// Sends what has gathered, a `WAIT` behind it, until the link is dropped.
async fn send_confirmed(mut connection: MultiplexedConnection, mut queue: mpsc::Receiver<Waiting>, wait: Duration) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        let mut pipeline = Pipeline::with_capacity(batch.len() + 1);
        let mut callers = Vec::with_capacity(batch.len());
        for (letter, caller) in batch.drain(..) {
            // Nobody waits for this one any more, and it has not left: it never will.
            if caller.is_closed() {
                continue;
            }
            push(&mut pipeline, letter);
            callers.push((pipeline.len() - 1, caller));
        }
        if callers.is_empty() {
            continue;
        }
        pipeline.cmd("WAIT").arg(1).arg(u64::try_from(wait.as_millis()).unwrap_or(50));
        let count = pipeline.len();
        match connection.send_packed_commands(&pipeline, 0, count).await {
            Ok(mut values) if values.len() == count => {
                let replicas = if let Some(Value::Int(replicas)) = values.pop() { replicas } else { 0 };
                for (index, caller) in callers {
                    let value = std::mem::take(&mut values[index]);
                    let _ = caller.send(Ok(Answer { value, replicas: Some(replicas) }));
                }
            }
            _ => {
                for (_, caller) in callers {
                    let _ = caller.send(Err(Lost));
                }
            }
        }
    }
}
