//! What lies in deploy/ does what it says: real proxies and the recipes, with the very files, of which only
//! addresses are replaced, ask a real daemon. Five requests pass, then it is 429 with the same header fields; a
//! daemon that hangs or is killed lets requests pass within a second; started again it limits again.
//!
//! A program that is not installed is skipped, and the test says so. `tests/run tools` installs the proxies
//! for root. What is printed are the rows of the table in docs/clients/proxies.md.

use crate::support;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::deployed::{Example, NOTHING, Running, Setting, found, succeeds, version};
use support::poll::wait_for;
use support::process::Daemon;
use support::skip::skipped;
use support::web::{Backend, ask};

/// No window ends during the test: it begins with the first request.
const POLICY: &str = "[policy.api]\nlimits = [\"5/1h fixed from-first\"]\n";
/// Longest wait while the daemon gives no answer.
const OPEN: Duration = Duration::from_secs(1);
/// The fields of a response that passes; a denial has `retry-after` as well.
const FIELDS: [&str; 2] = ["ratelimit", "ratelimit-policy"];
/// How often a round is begun anew where a check was not answered in time: the machine is busy, the file's
/// timeouts are short, and the request passed, as it should.
const ROUNDS: usize = 5;

fn say(text: &str) {
    writeln!(io::stderr(), "{text}").expect("stderr");
}

/// Shows all that is promised, or says what is missing here.
fn shows(example: &Example) {
    let name = example.name;
    let missing = |what: &str| {
        let wants = format!("{} {}", example.program, example.needs.1);
        skipped(name, &format!("no {what} here; `tests/run tools packages` says more"), wants.trim_end());
    };
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
        let response =
            ask(running.port, "/", body).unwrap_or_else(|error| panic!("{what}: {error}; {}", running.log()));
        assert_eq!(response.status, 200, "{what}: {}\n{}", response.head, running.log());
        assert!(!example.is_proxy || response.body.contains("some words"), "{what}: {}", response.body);
        response
    };
    let in_time = |what: &str| wait_for(what, 20, || Some(passes(what)).filter(|response| response.took < OPEN)).took;

    five_then_429(&running, &mut daemon);
    wait_for("it is still limited", 20, || {
        let before = reached();
        let limited = ask(running.port, "/", "").expect("an answer").status == 429;
        assert!(!limited || reached() == before, "what is limited does not reach the backend");
        limited.then_some(())
    });

    daemon.signal("STOP");
    let late = wait_for("a request passes a daemon that hangs", 20, || {
        // The signal may come a moment later than the first request.
        let response = ask(running.port, "/", "").expect("an answer");
        (response.status == 200 && response.took < OPEN).then_some(response.took)
    });
    daemon.signal("CONT");
    daemon.kill();
    let away = (0..5).map(|_| in_time("a request passes without a daemon")).max().expect("five");
    assert!(FIELDS.iter().all(|name| passes("without a daemon").header(name).is_none()), "nobody told them");

    // The backend's own errors stay its own, and nothing is sent to it twice: with a daemon, and without.
    let errors = || {
        for (path, status) in [("/forbidden", 403), ("/breaks", 502)].into_iter().filter(|_| example.is_proxy) {
            let before = reached();
            let response = ask(running.port, path, "some words").expect("an answer");
            assert_eq!((response.status, reached() - before), (status, 1), "{name} {path}: {}", response.head);
        }
    };
    errors();
    daemon.restart();
    errors();
    daemon.restart();
    five_then_429(&running, &mut daemon);
    let (late, away, version) = (late.as_millis(), away.as_millis(), version(program, example.version));
    say(&format!("| {name} | {version} | yes | {late} ms, {away} ms | yes |"));
}

/// Five requests pass, whose fields count down, and the sixth is 429.
fn five_then_429(running: &Running, daemon: &mut Daemon) {
    for _ in 0..ROUNDS {
        match round(running) {
            Ok(()) => return,
            Err(why) => say(&format!("{}: another round: {why}", running.name)),
        }
        daemon.restart();
    }
    panic!("{}: not in {ROUNDS} rounds; its log:\n{}", running.name, running.log());
}

/// An error where a check was not answered in time.
fn round(running: &Running) -> Result<(), String> {
    let ask =
        || ask(running.port, "/", "").unwrap_or_else(|error| panic!("{}: {error}; {}", running.name, running.log()));
    // A client that keeps a connection may need a moment to have another.
    let mut first = Some(wait_for("rationd is asked", 20, || Some(ask()).filter(|it| it.header(FIELDS[0]).is_some())));
    for left in (0..5).rev() {
        let response = first.take().unwrap_or_else(ask);
        assert_eq!(response.status, 200, "{}: {}\n{}", running.name, response.head, running.log());
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
    assert_eq!(denied.status, 429, "{}: {}\n{}", running.name, denied.head, running.log());
    let fields = FIELDS.map(|name| denied.header(name).unwrap_or_else(|| panic!("no {name}: {}", denied.head)));
    let wait = denied.header("retry-after").expect("a wait");
    assert_eq!(fields[0], format!("\"5/1h fixed from-first\";r=0;t={wait}"));
    assert_eq!(fields[1], "\"5/1h fixed from-first\";q=5;w=3600");
    Ok(())
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
        needs: (
            |_| Path::new("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists(),
            "/usr/lib/nginx/modules/ngx_http_lua_module.so",
        ),
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
        command: |setting| {
            // Its admin address is a fixed port.
            let text = fs::read_to_string(setting.file).expect("it was put there");
            fs::write(setting.file, format!("{{\n\tadmin off\n}}\n{text}")).expect("a file");
            setting.run(&["run", "--adapter", "caddyfile", "--config"])
        },
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
    shows(&Example { needs: (has_redis, "gem-redis"), ..recipe("Ruby, redis-rb", "ruby", &["recipes/check.rb"]) });
}

#[test]
fn php() {
    let has_redis = |program: &str| succeeds(program, &["-r", "exit(extension_loaded('redis') ? 0 : 1);"]);
    let command = |setting: &Setting<'_>| setting.run(&["-S", &format!("127.0.0.1:{}", setting.port)]);
    let example = recipe("PHP, phpredis", "php", &["recipes/check.php"]);
    shows(&Example { needs: (has_redis, "php-redis"), command, ..example });
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
