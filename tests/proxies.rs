//! What lies in deploy/ does what it says: real proxies and the recipes, with the very files, of which only
//! addresses are replaced, ask a real daemon. Five requests pass, then it is 429 with the same header fields; a
//! daemon that hangs or is killed lets requests pass within a second; started again it limits again.
//!
//! A program that is not installed is skipped, and the test says so. `tests/run tools` installs the proxies
//! for root. What is printed are the rows of the table in README.md.

#![cfg(feature = "daemon")]

mod support;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::poll::wait_for;
use support::process::Daemon;
use support::web::{Backend, ask};
use tempfile::TempDir;

/// No window ends during the test: it begins with the first request.
const POLICY: &str = "[policy.api]\nlimits = [\"5/1h fixed from-first\"]\n";
/// Longest wait while the daemon gives no answer.
const OPEN: Duration = Duration::from_secs(1);
/// The fields of a response that passes; a denial has `retry-after` as well.
const FIELDS: [&str; 2] = ["ratelimit", "ratelimit-policy"];
/// How often a round is begun anew where a check was not answered in time: the machine is busy, the file's
/// timeouts are short, and the request passed, as it should.
const ROUNDS: usize = 5;

/// The addresses that stand in deploy/.
const SOCKET: &str = "/run/rationd/rationd.sock";
const PORT: &str = "8080";
const BACKEND: &str = "127.0.0.1:9000";

/// What is run: which program, from which files, and how.
struct Example {
    name: &'static str,
    program: &'static str,
    /// What makes it say its version.
    version: &'static str,
    /// Below deploy/; the first is the one that it is started with.
    files: &'static [&'static str],
    /// Whether it passes requests on, or answers them itself.
    is_proxy: bool,
    /// Whether the program has all that it needs beside itself, and what that is.
    needs: (fn(&str) -> bool, &'static str),
    command: fn(&Setting<'_>) -> Command,
}

/// What a program is started with.
struct Setting<'a> {
    program: &'a str,
    /// The first file, in the directory.
    file: &'a Path,
    directory: &'a Path,
    port: u16,
}

impl Setting<'_> {
    /// The program, these words, the file.
    fn run(&self, words: &[&str]) -> Command {
        self.run_by(self.program, words)
    }

    fn run_by(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).arg(self.file);
        command
    }
}

/// No need.
const NOTHING: (fn(&str) -> bool, &str) = (|_| true, "");

/// Whether a command ends well.
fn succeeds(program: &str, words: &[&str]) -> bool {
    let status =
        Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Where a program is, also one for administrators.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|directory| Path::new(directory).join(program)).find(|file| file.is_file())
}

fn say(text: &str) {
    writeln!(io::stderr(), "{text}").expect("stderr");
}

/// Shows all that is promised, or says what is missing here.
fn shows(example: &Example) {
    let name = example.name;
    let missing = |what: &str| say(&format!("SKIPPED {name}: no {what} here; `tests/run tools packages` says more"));
    let Some(program) = found(example.program) else { return missing(example.program) };
    let program = program.to_str().expect("a path in UTF-8");
    if !example.needs.0(program) {
        return missing(example.needs.1);
    }
    let mut daemon = Daemon::start(POLICY);
    let backend = Backend::start();
    let running = Running::start(example, program, &daemon.socket(), backend.address);
    let reached = || backend.requests.load(Ordering::SeqCst);
    let passes = |what: &str| {
        let body = if example.is_proxy { "Some Words" } else { "" };
        let response = ask(running.port, body).unwrap_or_else(|error| panic!("{what}: {error}; {}", running.log()));
        assert_eq!(response.status, 200, "{what}: {}\n{}", response.head, running.log());
        assert!(!example.is_proxy || response.body.contains("some words"), "{what}: {}", response.body);
        response
    };
    let in_time = |what: &str| wait_for(what, 20, || Some(passes(what)).filter(|response| response.took < OPEN)).took;

    running.five_then_429(&mut daemon);
    let before = reached();
    assert_eq!(ask(running.port, "").map(|response| response.status).ok(), Some(429));
    assert_eq!(reached(), before, "what is limited does not reach the backend");

    daemon.signal("STOP");
    let late = wait_for("a request passes a daemon that hangs", 20, || {
        // The signal may come a moment later than the first request.
        let response = ask(running.port, "").expect("an answer");
        (response.status == 200 && response.took < OPEN).then_some(response.took)
    });
    daemon.signal("CONT");
    daemon.kill();
    let away = (0..5).map(|_| in_time("a request passes without a daemon")).max().expect("five");
    assert!(FIELDS.iter().all(|name| passes("without a daemon").header(name).is_none()), "nobody told them");

    daemon.restart();
    running.five_then_429(&mut daemon);
    let (late, away, version) = (late.as_millis(), away.as_millis(), version(program, example.version));
    say(&format!("| {name} | {version} | yes | {late} ms, {away} ms | yes |"));
}

fn version(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().expect("it is there");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let number = said.find(|c: char| c.is_ascii_digit()).map_or("", |at| &said[at..]);
    number.split([' ', '\n', '-', '+', 'p']).next().unwrap_or_default().to_owned()
}

/// A program that serves, dead when dropped.
struct Running {
    name: &'static str,
    child: Child,
    port: u16,
    directory: TempDir,
}

impl Running {
    /// Returns when it listens. Whoever takes the port before it does makes it try another.
    fn start(example: &Example, program: &str, socket: &Path, backend: SocketAddr) -> Self {
        let mut log = String::new();
        for _ in 0..5 {
            let directory = tempfile::Builder::new().prefix("rationd-deploy-").tempdir().expect("a directory");
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
            let port = port.expect("a free port").port();
            for file in example.files {
                put(file, directory.path(), socket, port, backend);
            }
            let file = directory.path().join(Path::new(example.files[0]).file_name().expect("a file"));
            let log_file = File::create(directory.path().join("log")).expect("a log file");
            let child = (example.command)(&Setting { program, file: &file, directory: directory.path(), port })
                .current_dir(directory.path())
                .env("HOME", directory.path())
                .env_remove("XDG_DATA_HOME")
                .env_remove("XDG_CONFIG_HOME")
                .stdin(Stdio::null())
                .stdout(log_file.try_clone().expect("a second handle"))
                .stderr(log_file)
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            let mut running = Self { name: example.name, child, port, directory };
            let listens = wait_for(&format!("{} listens", example.name), 60, || {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Some(true);
                }
                running.child.try_wait().expect("it is our child").is_some().then_some(false)
            });
            if listens {
                return running;
            }
            log = running.log();
        }
        panic!("{} does not start:\n{log}", example.name);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Five requests pass, whose fields count down, and the sixth is 429.
    fn five_then_429(&self, daemon: &mut Daemon) {
        for _ in 0..ROUNDS {
            match self.round() {
                Ok(()) => return,
                Err(why) => say(&format!("{}: another round: {why}", self.name)),
            }
            daemon.restart();
        }
        panic!("{}: not in {ROUNDS} rounds; its log:\n{}", self.name, self.log());
    }

    /// An error where a check was not answered in time.
    fn round(&self) -> Result<(), String> {
        let ask = || ask(self.port, "").unwrap_or_else(|error| panic!("{}: {error}; {}", self.name, self.log()));
        // A client that keeps a connection may need a moment to have another.
        let mut first =
            Some(wait_for("rationd is asked", 20, || Some(ask()).filter(|it| it.header(FIELDS[0]).is_some())));
        for left in (0..5).rev() {
            let response = first.take().unwrap_or_else(ask);
            assert_eq!(response.status, 200, "{}: {}\n{}", self.name, response.head, self.log());
            let fields = FIELDS.map(|name| response.header(name));
            let [Some(limit), Some(policy)] = fields else { return Err(format!("{left} left: {}", response.head)) };
            if !limit.starts_with(&format!("\"5/1h fixed from-first\";r={left};t=")) {
                return Err(format!("{left} left: {limit}"));
            }
            assert_eq!(policy, "\"5/1h fixed from-first\";q=5;w=3600");
            assert_eq!((response.header("retry-after"), response.body.contains("hello")), (None, true));
        }
        let denied = ask();
        if denied.status == 200 {
            return Err("the sixth passed".into());
        }
        assert_eq!(denied.status, 429, "{}: {}\n{}", self.name, denied.head, self.log());
        let fields = FIELDS.map(|name| denied.header(name).unwrap_or_else(|| panic!("no {name}: {}", denied.head)));
        let wait = denied.header("retry-after").expect("a wait");
        assert_eq!(fields[0], format!("\"5/1h fixed from-first\";r=0;t={wait}"));
        assert_eq!(fields[1], "\"5/1h fixed from-first\";q=5;w=3600");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts a file of deploy/ into `directory`, with the test's addresses.
fn put(file: &str, directory: &Path, socket: &Path, port: u16, backend: SocketAddr) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    let text = fs::read_to_string(&from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let text = text
        .replace(SOCKET, socket.to_str().expect("a path in UTF-8"))
        .replace(PORT, &port.to_string())
        .replace(BACKEND, &backend.to_string())
        .replace("/etc/nginx/", &format!("{}/", directory.display()))
        .replace("/etc/haproxy/", &format!("{}/", directory.display()));
    assert!(!text.contains("/run/rationd") && !text.contains(PORT), "{file} has addresses that no test replaces");
    fs::write(directory.join(Path::new(file).file_name().expect("a file")), text).expect("a file");
}

/// nginx in one process, whose files lie in `directory`.
fn nginx(setting: &Setting<'_>) -> Command {
    let Setting { program, file, directory, .. } = *setting;
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = temporary.map(|name| format!("{name}_temp_path {}/{name};\n", directory.display())).concat();
    let text = fs::read_to_string(file).expect("it was put there");
    let text = text.replacen("http {\n", &format!("http {{\n{paths}access_log off;\n"), 1);
    fs::write(file, text).expect("a file");
    // The socket and its directory are the tests' user's, which is where root's nginx would change to another.
    let is_root = fs::metadata("/proc/self").expect("a process").uid() == 0;
    let user = if is_root { "user root;" } else { "" };
    let mut command = Command::new(program);
    command.arg("-p").arg(directory).arg("-e").arg("stderr").arg("-c").arg(file).arg("-g");
    command.arg(format!("daemon off; master_process off; pid {}/pid; {user}", directory.display()));
    command
}

#[test]
fn nginx_with_auth_request() {
    shows(&Example {
        name: "nginx, `auth_request`",
        program: "nginx",
        version: "-v",
        files: &["nginx/nginx.conf"],
        is_proxy: true,
        needs: NOTHING,
        command: nginx,
    });
}

#[test]
fn nginx_with_lua() {
    shows(&Example {
        name: "nginx, Lua",
        program: "nginx",
        version: "-v",
        files: &["nginx/lua.conf", "nginx/rationd.lua"],
        is_proxy: true,
        needs: (|_| Path::new("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists(), "libnginx-mod-http-lua"),
        command: nginx,
    });
}

#[test]
fn caddy() {
    shows(&Example {
        name: "Caddy",
        program: "caddy",
        version: "version",
        files: &["caddy/Caddyfile"],
        is_proxy: true,
        needs: NOTHING,
        command: |setting| setting.run(&["run", "--adapter", "caddyfile", "--config"]),
    });
}

#[test]
fn haproxy() {
    shows(&Example {
        name: "HAProxy, Lua",
        program: "haproxy",
        version: "-v",
        files: &["haproxy/haproxy.cfg", "haproxy/rationd.lua"],
        is_proxy: true,
        needs: NOTHING,
        command: |setting| setting.run(&["-db", "-f"]),
    });
}

/// Where `tests/run packages` has put redis-py and ioredis.
fn installed(part: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in the target directory");
    let path = target.join("clients").join(part);
    assert!(path.exists(), "{} is missing: run `tests/run packages` first", path.display());
    path
}

/// One of deploy/recipes, which serves by itself.
fn recipe(name: &'static str, program: &'static str, files: &'static [&'static str]) -> Example {
    let version = if program == "go" { "version" } else { "--version" };
    Example { name, program, version, files, is_proxy: false, needs: NOTHING, command: |setting| setting.run(&[]) }
}

#[test]
fn python() {
    let example = recipe("Python, redis-py", "python3", &["recipes/check.py"]);
    shows(&Example { command: |setting| setting.run_by(installed("venv/bin/python"), &[]), ..example });
}

#[test]
fn node() {
    let command = |setting: &Setting<'_>| {
        // An import looks beside the file.
        symlink(installed("node_modules"), setting.directory.join("node_modules")).expect("a link");
        setting.run(&[])
    };
    shows(&Example { command, ..recipe("Node, ioredis", "node", &["recipes/check.mjs"]) });
}

#[test]
fn ruby() {
    let has_redis = |program: &str| succeeds(program, &["-e", "require 'redis'"]);
    shows(&Example { needs: (has_redis, "gem redis"), ..recipe("Ruby, redis-rb", "ruby", &["recipes/check.rb"]) });
}

#[test]
fn php() {
    let has_redis = |program: &str| succeeds(program, &["-r", "exit(extension_loaded('redis') ? 0 : 1);"]);
    let command = |setting: &Setting<'_>| setting.run(&["-S", &format!("127.0.0.1:{}", setting.port)]);
    let example = recipe("PHP, phpredis", "php", &["recipes/check.php"]);
    shows(&Example { needs: (has_redis, "extension redis"), command, ..example });
}

#[test]
fn go() {
    let command = |setting: &Setting<'_>| {
        let built = setting.directory.join("check");
        let out = built.to_str().expect("a path in UTF-8");
        let mut build = setting.run(&["build", "-o", out]);
        // A module or a toolchain from elsewhere is not wanted.
        build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")).env("GOTOOLCHAIN", "local");
        let status = build.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").status().expect("go was there");
        assert!(status.success(), "go build: {status}");
        Command::new(built)
    };
    shows(&Example { command, ..recipe("Go", "go", &["recipes/check.go"]) });
}
