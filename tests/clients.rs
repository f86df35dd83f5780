//! Real Redis clients with their default settings ask a running daemon and get exact answers:
//! redis-py, ioredis, redis-cli, redis-benchmark. `tests/run packages` sets the first two up.

#![cfg(feature = "daemon")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::installed::installed;
use support::process::Daemon;
use support::resp::Reply;

fn daemon() -> Daemon {
    Daemon::start("[policy.api]\nlimits = [\"3/1h fixed\"]\n")
}

/// Runs a program to its end and returns what it wrote to stdout.
fn output(command: &mut Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; `tests/run tools` installs what it may"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} ended with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

#[test]
fn redis_py_gets_exact_answers() {
    let daemon = daemon();
    let python = installed("venv/bin/python");
    let said = output(Command::new(python).arg(script("redis_py.py")).arg(daemon.socket()));
    assert!(said.contains("redis-py 8.") && said.trim_end().ends_with("passed"), "{said}");
}

#[test]
fn ioredis_gets_exact_answers() {
    let daemon = daemon();
    let modules = installed("node_modules");
    let said = output(Command::new("node").env("NODE_PATH", modules).arg(script("ioredis.js")).arg(daemon.socket()));
    assert!(said.contains("ioredis 6.") && said.trim_end().ends_with("passed"), "{said}");
}

fn redis_cli(daemon: &Daemon, arguments: &str) -> String {
    output(Command::new("redis-cli").arg("-s").arg(daemon.socket()).args(arguments.split(' ')))
}

#[test]
fn redis_cli_prints_the_recorded_answers() {
    let daemon = daemon();
    assert_eq!(redis_cli(&daemon, "CL.THROTTLE user:42 15 30 60"), "0\n16\n15\n-1\n2\n");
    assert_eq!(redis_cli(&daemon, "-3 CL.THROTTLE user:42 15 30 60"), "0\n16\n14\n-1\n4\n");
    assert_eq!(redis_cli(&daemon, "CL.THROTTLE user:42 x 30 60").trim_end(), "ERR Couldn't parse as integer: x");
    assert!(redis_cli(&daemon, "RATION.CHECK api user:42").starts_with("0\n3\n2\n-1\n"));
    assert_eq!(redis_cli(&daemon, "PING"), "PONG\n");
}

#[test]
fn redis_benchmark_charges_each_check_once() {
    const CHECKS: i64 = 2000;
    let daemon = daemon();
    for pipeline in ["1", "16"] {
        let said = output(
            Command::new("redis-benchmark")
                .arg("-s")
                .arg(daemon.socket())
                .args(["-n", &CHECKS.to_string(), "-c", "20", "-q", "-P", pipeline])
                .args(["CL.THROTTLE", &format!("bench{pipeline}"), "4999", "1", "86400"]),
        );
        assert!(said.contains("requests per second"), "{said}");
        let left = daemon.ask(&format!("CL.THROTTLE bench{pipeline} 4999 1 86400 0"));
        assert_eq!(left.items()[..3], [Reply::Int(0), Reply::Int(5000), Reply::Int(5000 - CHECKS)]);
    }
}
