//! A real redis-server that dies with the test, on loopback or in a network namespace: over TCP, a Unix
//! socket or TLS.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Client, Connection, ConnectionLike, Value};
use tempfile::TempDir;

use super::poll::wait_until;

/// What an ACL user of ours needs, on a single server and on a cluster, and nothing more.
pub const ACL_RULES: &str = "on >secret resetchannels ~ration:* -@all +eval +evalsha +hmget +hset +hdel +hkeys +hlen +del \
     +script|load +pexpire +time +ping +info +wait +asking +cluster|slots +config|get";

/// Where a process runs, and the address that it listens on.
#[derive(Clone, Debug)]
pub struct Place {
    /// What its command begins with: enough to get there.
    pub way: Vec<String>,
    /// Its address.
    pub host: String,
}

impl Place {
    /// Where the test runs, on loopback.
    pub fn here() -> Self {
        Self { way: Vec::new(), host: "127.0.0.1".to_owned() }
    }

    /// A command that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut words = self.way.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        command
    }
}

/// A running redis-server.
pub struct Server {
    child: Child,
    arguments: Vec<String>,
    place: Place,
    /// Its port.
    pub port: u16,
    /// Its files, gone when it is.
    pub dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago, below the range from which the system gives out its own.
pub fn free_port() -> u16 {
    loop {
        let port = 10_000 + (rationd::clock::random() % 22_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn spawn(place: &Place, arguments: &[String]) -> Child {
    let mut command = place.command("redis-server");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("redis-server cannot be run ({error}): install it, e.g. apt-get install redis-server")
    })
}

impl Server {
    /// Starts a server with these settings beside the port (`--name value …`); tries other ports
    /// when one is taken after all.
    pub fn start(settings: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        Self::start_at(&Place::here(), settings)
    }

    /// The same somewhere else.
    pub fn start_at(place: &Place, settings: impl Fn(u16, &Path) -> Vec<String>) -> Self {
        for _ in 0..10 {
            if let Some(server) = Self::try_start(place, &settings) {
                return server;
            }
        }
        panic!("redis-server did not start on any of 10 ports");
    }

    /// A plain server over TCP.
    pub fn plain() -> Self {
        Self::start(|_, _| Vec::new())
    }

    fn try_start(place: &Place, settings: &impl Fn(u16, &Path) -> Vec<String>) -> Option<Self> {
        let dir = TempDir::new().expect("a temporary directory");
        let port = free_port();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let pairs = [
            ("--port", port.to_string()),
            ("--bind", place.host.clone()),
            // Its mode would refuse replicas elsewhere; nobody but this test is in a place of its own.
            ("--protected-mode", if place.way.is_empty() { "yes" } else { "no" }.to_owned()),
            ("--save", String::new()),
            ("--appendonly", "no".to_owned()),
            ("--unixsocket", path("redis.sock")),
            ("--dir", path("")),
            ("--logfile", "redis.log".to_owned()),
        ];
        let mut arguments: Vec<_> = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        arguments.extend(settings(port, dir.path()));
        let mut server = Self { child: spawn(place, &arguments), arguments, place: place.clone(), port, dir };
        server.comes_up().then_some(server)
    }

    /// Whether it answers in the end, rather than ending first.
    fn comes_up(&mut self) -> bool {
        let mut alive = true;
        wait_until("redis-server answers or ends", 10, || {
            alive = self.child.try_wait().expect("our child").is_none();
            !alive || self.answers()
        });
        alive
    }

    /// Starts it again on the same port, empty, after `kill`.
    pub fn restart(&mut self) {
        wait_until("the port is free again", 10, || {
            self.child = spawn(&self.place, &self.arguments);
            self.comes_up()
        });
    }

    fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The address that it listens on.
    pub fn host(&self) -> &str {
        &self.place.host
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.place.host, self.port)
    }

    /// `redis://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// A connection over the Unix socket, as the default user.
    pub fn connect(&self) -> redis::RedisResult<Connection> {
        let client = Client::open(format!("unix://{}", self.socket().display()))?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        connection.set_write_timeout(Some(Duration::from_secs(1)))?;
        Ok(connection)
    }

    /// Sends one command, words separated by blanks.
    pub fn ask(&self, line: &str) -> redis::RedisResult<Value> {
        let words: Vec<_> = line.split_ascii_whitespace().map(str::to_owned).collect();
        self.ask_words(&words)
    }

    /// Sends one command.
    pub fn ask_words(&self, words: &[String]) -> redis::RedisResult<Value> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        self.connect()?.req_command(&command)?.extract_error()
    }

    /// The text that a command answers.
    pub fn text(&self, line: &str) -> String {
        let value = self.ask(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        redis::from_redis_value(value).unwrap_or_else(|error| panic!("{line}: {error:?}"))
    }

    /// One field of `INFO section`.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = redis::from_redis_value(self.ask(&format!("INFO {section}")).ok()?).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
    }

    /// Checks that no user was ever refused a command or a key.
    pub fn assert_nothing_was_denied(&self) {
        assert_eq!(self.ask("ACL LOG").expect("ACL LOG"), Value::Array(Vec::new()), "something was denied");
    }

    /// Ends it without notice (SIGKILL).
    pub fn kill(&mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in its tracks (SIGSTOP).
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success(), "kill {signal}");
    }
}

/// A certificate authority, a server's and a client's certificate, as files.
pub struct Certificates {
    /// The files.
    pub dir: TempDir,
}

impl Certificates {
    /// New ones, for `127.0.0.1` and `localhost`.
    pub fn make() -> Self {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let dir = TempDir::new().expect("a temporary directory");
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("a file");
        let ca_key = KeyPair::generate().expect("a key");
        let mut ca_params = CertificateParams::new(Vec::new()).expect("parameters");
        // OpenSSL takes a certificate whose subject is its issuer's for a self-signed one.
        ca_params.distinguished_name.push(rcgen::DnType::CommonName, "a CA of rationd's tests");
        ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("ca.pem", ca_params.self_signed(&ca_key).expect("a CA").pem());
        let issuer = Issuer::new(ca_params, ca_key);
        for name in ["server", "client"] {
            let key = KeyPair::generate().expect("a key");
            let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
            let mut params = CertificateParams::new(names).expect("parameters");
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).expect("a certificate").pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { dir }
    }

    /// The path of one of `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Settings of a server that talks TLS on `port` and wants clients' certificates.
    pub fn settings(&self, port: u16) -> Vec<String> {
        let path = |name| self.path(name).display().to_string();
        let pairs = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", path("ca.pem")),
            ("--tls-cert-file", path("server.pem")),
            ("--tls-key-file", path("server.key")),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}
