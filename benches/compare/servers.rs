//! The servers that are compared: started alone on sockets and ports of their own, ended with the run.

use std::path::{Path, PathBuf};

use rationd::client::{Client, Reply};

use super::probe::{Bench, CLIENT, Door, Sample};
pub(crate) use super::process::free_port;
use super::process::{
    Failed, Process, await_condition, directory, pinned, redis_server, throttlecrab_server, without_settings,
};

/// Places in [`Servers::all`].
pub(crate) const RATIOND: usize = 0;
/// See above.
pub(crate) const GET: usize = 1;
/// See above.
pub(crate) const EVALSHA: usize = 2;

/// One way to ask one server.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// The command, with `{limit}` for burst, count and period.
    template: String,
    door: Door,
    process: u32,
    _owned: Option<Process>,
}

/// All of them.
pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    _redis: Process,
}

impl Servers {
    /// Starts whatever can be started; Redis must be.
    pub(crate) fn start() -> Result<Self, Failed> {
        let mut all = vec![rationd()?];
        let (redis, socket) = redis_server(None)?;
        let mut client = await_socket(&socket, "redis-server")?;
        let sha = load_gcra(&mut client)?;
        // Every command is over the same server, one at a time.
        let over_redis = |name, template: String| Server {
            name,
            template,
            door: Door::Socket(redis.path("redis.sock")),
            process: redis.id(),
            _owned: None,
        };
        all.push(over_redis("Redis GET", "GET value:{key}".to_owned()));
        all.push(over_redis("Redis EVALSHA, GCRA", format!("EVALSHA {sha} 1 {{key}} {{limit}}")));
        Bench { keys: 1, every_key_once: true, ..Bench::of("SET value:{key} 1751234567123456") }
            .run(&all[GET].door, all[GET].process)?;
        match throttlecrab() {
            Ok(server) => all.push(server),
            Err(Failed(why)) => println!("without throttlecrab: {why}\n"),
        }
        Ok(Self { all, _redis: redis })
    }

    /// Makes every server know all keys.
    pub(crate) fn fill(&self, keys: u64, limit: &str) -> Result<(), Failed> {
        for (index, server) in self.all.iter().enumerate() {
            let command =
                if index == GET { "SET value:{key} 1751234567123456".to_owned() } else { server.command(limit) };
            server.load(&Bench { keys, pipeline: 16, every_key_once: true, ..Bench::of(&command) })?;
        }
        Ok(())
    }
}

impl Server {
    /// The command that checks a key against a limit of burst, count and period.
    pub(crate) fn command(&self, limit: &str) -> String {
        self.template.replace("{limit}", limit)
    }

    pub(crate) fn load(&self, bench: &Bench<'_>) -> Result<Sample, Failed> {
        bench.run(&self.door, self.process).map_err(|Failed(why)| Failed(format!("{}: {why}", self.name)))
    }

    /// Memory of the process that is in RAM.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
    }
}

/// The hash by which a plain GCRA check can be called.
pub(crate) fn load_gcra(client: &mut Client) -> Result<String, Failed> {
    let script = include_bytes!("gcra.lua");
    let sha = client.command(&[b"SCRIPT", b"LOAD", script]).map_err(|error| Failed(error.to_string()))?;
    Ok(sha.as_bytes().map(|sha| String::from_utf8_lossy(sha).into_owned()).unwrap_or_default())
}

/// This daemon with a Redis for its store, and its socket.
pub(crate) fn rationd_beside(redis: &Path) -> Result<(Process, PathBuf), Failed> {
    start(&format!("[store]\nurl = \"redis+unix://{}\"\n", redis.display()), "off")
}

/// This daemon with a configuration and an admin address, and its socket.
pub(crate) fn start(config: &str, admin: &str) -> Result<(Process, PathBuf), Failed> {
    let directory = directory()?;
    let socket = directory.path().join("rationd.sock");
    let file = directory.path().join("rationd.toml");
    std::fs::write(&file, config).map_err(|error| Failed(error.to_string()))?;
    let mut command = pinned(CLIENT, 0);
    without_settings(&mut command);
    command.args(["serve", "--admin", admin, "--config"]).arg(file).arg("--socket").arg(&socket);
    let process = Process::start(command, directory)?;
    await_socket(&socket, "rationd")?;
    Ok((process, socket))
}

/// This daemon, with nothing but defaults.
pub(crate) fn rationd() -> Result<Server, Failed> {
    let (process, socket) = start("", "off")?;
    Ok(Server {
        name: "rationd",
        template: "CL.THROTTLE {key} {limit}".to_owned(),
        door: Door::Socket(socket),
        process: process.id(),
        _owned: Some(process),
    })
}

/// throttlecrab-server, as it speaks RESP.
fn throttlecrab() -> Result<Server, Failed> {
    let program = throttlecrab_server()?;
    let port = free_port()?;
    let mut command = pinned(&program.to_string_lossy(), 0);
    command.args(["--redis", "--redis-host", "127.0.0.1", "--log-level", "warn", "--redis-port", &port.to_string()]);
    let process = Process::start(command, directory()?)?;
    await_condition("throttlecrab-server", || std::net::TcpStream::connect(("127.0.0.1", port)).ok())?;
    Ok(Server {
        name: "throttlecrab (TCP)",
        template: "THROTTLE {key} {limit}".to_owned(),
        door: Door::Port(port),
        process: process.id(),
        _owned: Some(process),
    })
}

pub(crate) fn await_socket(socket: &Path, name: &str) -> Result<Client, Failed> {
    await_condition(name, || {
        let mut client = Client::connect(socket).ok()?;
        (client.command(&[b"PING"]).ok()? == Reply::Simple("PONG".into())).then_some(client)
    })
}
