//! Workers that keep one limit with all workers on all hosts, as tasks that share one connection to the daemon.
//!
//! A worker that is denied waits as long as the decision says. One whose question is not answered by the deadline does
//! not stop: while nobody limits it, it works at a slow pace of its own.
//!
//! `cargo run --release -- --socket /tmp/rationd.sock serve`, then `cargo run --example fleet -- /tmp/rationd.sock`:
//! the policy `api` lets 200 jobs begin at once and 100 more a second, however many of these programs run. Stop the
//! daemon meanwhile (Ctrl-C, or Ctrl-Z to let it hang), and start it again.

use std::error::Error;
use std::time::Duration;

use rationd::client::{AsyncClient, ClientError};
use tokio::time::{sleep, timeout};

const WORKERS: usize = 8;
const JOBS: usize = 100;
/// A daemon of the same host answers in less than a millisecond, and after `store.timeout` (50 ms) in any case.
const DEADLINE: Duration = Duration::from_millis(100);
/// A worker's own pace: all workers of all hosts together stay well below the limit with it.
const PACE: Duration = Duration::from_secs(1);

/// What a worker may do now.
enum Turn {
    /// Begin the job.
    Begin,
    /// Ask again after so long.
    Wait(Duration),
    /// Begin the job after [`PACE`]: nobody answers, and this is why.
    Alone(String),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args().nth(1).unwrap_or_else(|| "/run/rationd/rationd.sock".to_owned());
    // Clones share the connection. It is opened by the first check, and again after it broke.
    let rations = AsyncClient::new(socket);
    let workers: Vec<_> = (0..WORKERS).map(|worker| tokio::spawn(work(worker, rations.clone()))).collect();
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

async fn work(worker: usize, rations: AsyncClient) -> Result<(), ClientError> {
    for job in 0..JOBS {
        loop {
            match turn(&rations).await? {
                Turn::Begin => break,
                Turn::Wait(span) => sleep(span).await,
                Turn::Alone(why) => {
                    eprintln!("worker {worker} goes on alone: {why}");
                    sleep(PACE).await;
                    break;
                }
            }
        }
        println!("worker {worker} does job {job}");
    }
    Ok(())
}

/// Asks the daemon once. Only what no waiting can mend is an error: that the daemon knows no such policy, for example.
async fn turn(rations: &AsyncClient) -> Result<Turn, ClientError> {
    // A check that is given up may have been charged already. Too little is admitted then, never too much.
    let Ok(answer) = timeout(DEADLINE, rations.check("api", "vendor", 1)).await else {
        return Ok(Turn::Alone(format!("no answer within {DEADLINE:?}")));
    };
    match answer {
        Ok(decision) if decision.is_allowed() => Ok(Turn::Begin),
        // `None`: waiting does not help as long as the policy is what it is.
        Ok(decision) => Ok(Turn::Wait(decision.retry_after.unwrap_or(PACE))),
        Err(error) if error.is_unreachable() => Ok(Turn::Alone(error.to_string())),
        Err(error) => Err(error),
    }
}
