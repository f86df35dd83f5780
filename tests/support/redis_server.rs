//! A real redis-server on a Unix socket in a directory of its own; both are gone with the test.

use std::process::{Child, Command, Stdio};

use rationd::store::redis::evalsha;
use rationd::store::script;
use redis::{Client, Connection};
use tempfile::TempDir;

/// A running redis-server that listens on no port.
pub struct RedisServer {
    child: Child,
    dir: TempDir,
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RedisServer {
    /// Starts it; panics with what to do when redis-server is not installed.
    pub fn start() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("redis-server cannot be run ({error}): install it, for example: apt-get install redis-server")
        });
        Self { child, dir }
    }

    /// A connection, as soon as the server takes one.
    pub fn connect(&self) -> Connection {
        let path = self.dir.path().join("redis.sock");
        let client = Client::open(format!("unix://{}", path.display())).expect("a valid address");
        super::poll::wait_for("redis-server takes connections", 20, || client.get_connection().ok())
    }

    /// Loads the scripts, and checks that Redis knows them by the hash we do.
    pub fn load_scripts(&self, connection: &mut Connection) {
        for script in script::all() {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(script.text).query::<String>(connection);
            assert_eq!(load.expect("a valid script"), evalsha::sha(script), "{}", script.name);
        }
    }
}
