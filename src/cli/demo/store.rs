//! The store of the demo: a redis-server of our own where one is installed, or the scripts' twin in this process.
//!
//! Either way it listens on a Unix socket and speaks RESP, so that nodes reach it in the same way.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::store::redis::Twin;
use crate::wire::value::Value;

/// Longest wait until a redis-server answers, or for its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which store to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A redis-server where one is on PATH, the twin otherwise
    Auto,
    /// A redis-server
    Redis,
    /// The scripts' twin in this process
    Twin,
}

/// A running store.
#[derive(Debug)]
pub(super) struct Store {
    /// Where it listens.
    pub(super) path: PathBuf,
    /// What it is, for people.
    pub(super) name: String,
    redis: Option<Child>,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(redis) = &mut self.redis {
            let _ = redis.kill();
            let _ = redis.wait();
        }
    }
}

impl Store {
    /// Starts a store with its files in `directory`.
    ///
    /// # Errors
    /// What keeps it from starting, for people.
    pub(super) fn start(kind: Kind, directory: &Path, runtime: &Handle) -> Result<Self, String> {
        let path = directory.join("store.sock");
        if kind != Kind::Twin {
            match redis(&path, directory) {
                Ok(child) => {
                    let mut store = Self { path, name: String::new(), redis: Some(child) };
                    let info = runtime.block_on(store.info())?;
                    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
                    store.name = format!("a redis-server {} found on PATH", version.trim());
                    return Ok(store);
                }
                Err(error) if kind == Kind::Redis => {
                    return Err(format!("redis-server cannot be run: {error}; install it, or use --store twin"));
                }
                Err(_) => {}
            }
        }
        let _inside = runtime.enter();
        let listener = UnixListener::bind(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let twin = Arc::new(Mutex::new(Twin::new(clock::unguessable())));
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, twin.clone()));
            }
        });
        let name = "the scripts' twin in this process, as no redis-server was asked for or found".to_owned();
        Ok(Self { path, name, redis: None })
    }

    /// Flushes it.
    pub(super) async fn flush(&self) -> Result<(), String> {
        self.ask("*1\r\n$8\r\nFLUSHALL\r\n").await.map(|_| ())
    }

    /// Its `INFO`, as soon as it answers.
    async fn info(&self) -> Result<String, String> {
        let answers = async {
            loop {
                if let Ok(info) = self.ask("*1\r\n$4\r\nINFO\r\n").await {
                    return info;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, answers).await.map_err(|_| format!("redis-server has not answered within {PATIENCE:?}"))
    }

    async fn ask(&self, command: &str) -> Result<String, String> {
        let answer = async {
            let mut stream = UnixStream::connect(&self.path).await?;
            stream.write_all(command.as_bytes()).await?;
            let mut input = Vec::new();
            loop {
                if let Some((value, _)) = Value::parse(&input).map_err(io::Error::other)? {
                    return Ok(value);
                }
                if stream.read_buf(&mut input).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
        };
        match timeout(PATIENCE, answer).await {
            Ok(Ok(value)) => {
                Ok(value.as_bytes().map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default())
            }
            Ok(Err(error)) => Err(format!("the store does not answer: {error}")),
            Err(_) => Err("the store does not answer in time".to_owned()),
        }
    }
}

fn redis(socket: &Path, directory: &Path) -> io::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocketperm", "600", "--unixsocket"]);
    command.arg(socket).arg("--dir").arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Answers one connection until it ends, or sends what is no command.
async fn serve(mut client: UnixStream, twin: Arc<Mutex<Twin>>) {
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        let mut used = 0;
        loop {
            let words = match Value::parse(&input[used..]) {
                Ok(Some((Value::Array(words), len))) => {
                    used += len;
                    words
                }
                Ok(None) => break,
                _ => return,
            };
            let words: Vec<&[u8]> = words.iter().filter_map(Value::as_bytes).collect();
            let mut twin = twin.lock().unwrap_or_else(PoisonError::into_inner);
            output.extend(twin.answer(clock::wall(), &words));
        }
        input.drain(..used);
        if client.write_all(&output).await.is_err() {
            return;
        }
        output.clear();
        if !matches!(client.read_buf(&mut input).await, Ok(1..)) {
            return;
        }
    }
}
