//! Real Redis clients ask a running daemon and get exact answers: with their default settings, and the matrix of
//! clients, protocols and ways to ask, whose rows are those of the table in docs/clients/redis.md (`tests/run clients`).
//!
//! redis-py, ioredis and node-redis come by `tests/run packages`; another client that is not installed is skipped,
//! and the test says so. `tests/run tools` installs those for root.

use crate::support;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::deployed::{found, succeeds, version};
use support::installed::installed;
use support::matrix::{ALL, Client, DEEP_POLICY, DEPTHS, WAYS, assert_charged, depths, driver, output};
use support::process::Daemon;
use support::resp::Reply;
use support::skip::skipped;

fn daemon() -> Daemon {
    Daemon::start("[policy.api]\nlimits = [\"3/1h fixed\"]\n")
}

fn say(text: &str) {
    writeln!(io::stderr(), "{text}").expect("stderr");
}

/// Prints a row of the table in docs/clients/redis.md, where its client must stand.
fn print_row(row: &str) {
    let name = row.split('|').nth(1).expect("a name");
    assert!(
        include_str!("../docs/clients/redis.md").contains(&format!("\n|{name}|")),
        "docs/clients/redis.md has no row of{name}"
    );
    say(row);
}

/// `wants`: as `tests/run` knows it.
fn missing(name: &str, wants: &str) {
    skipped(name, "not all of it is here; `tests/run tools` says more", wants);
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

#[test]
fn redis_py_gets_exact_answers() {
    let daemon = daemon();
    let python = installed("venv/bin/python");
    let said = output(Command::new(python).arg(script("redis_py.py")).arg(daemon.socket()), "");
    assert!(said.contains("redis-py 8.") && said.trim_end().ends_with("passed"), "{said}");
}

#[test]
fn ioredis_gets_exact_answers() {
    let daemon = daemon();
    let modules = installed("node_modules");
    let mut command = Command::new("node");
    let said = output(command.env("NODE_PATH", modules).arg(script("ioredis.js")).arg(daemon.socket()), "");
    assert!(said.contains("ioredis 6.") && said.trim_end().ends_with("passed"), "{said}");
}

const ASYNC_WAYS: &[&str] = &["alone", "pipeline", "multi", "async-alone", "async-pipeline", "async-multi"];

/// A client of the matrix whose driver is run by `program`.
fn client(name: &'static str, version: &'static str, program: impl Into<PathBuf>, file: &str) -> Client {
    let mut command = Command::new(program.into());
    command.arg(driver(file));
    Client { name, version, command, protocols: &["default", "2", "3"], ways: WAYS, is_remote: false, in_batch: ALL }
}

#[test]
fn redis_py_8_in_all_its_ways() {
    let python = installed("venv/bin/python");
    let client = Client { ways: ASYNC_WAYS, ..client("redis-py 8", "8.", python, "redis_py.py") };
    print_row(&client.row());
}

/// It came before RESP3.
#[test]
fn redis_py_4_in_all_its_ways() {
    let python = installed("venv/bin/python");
    let client = client("redis-py 4", "4.", python, "redis_py.py");
    let mut client = Client { ways: ASYNC_WAYS, protocols: &["default"], ..client };
    client.command.env("PYTHONPATH", installed("redis-py-4"));
    print_row(&client.row());
}

#[test]
fn ioredis_in_all_its_ways() {
    let mut client = client("ioredis", "6.", "node", "ioredis.js");
    client.command.env("NODE_PATH", installed("node_modules"));
    print_row(&client.row());
}

#[test]
fn node_redis_in_all_its_ways() {
    let mut client = client("node-redis", "6.", "node", "node_redis.js");
    client.command.env("NODE_PATH", installed("node_modules"));
    print_row(&client.row());
}

#[test]
fn redis_rb_in_all_its_ways() {
    if !succeeds("ruby", &["-e", "require 'redis'"]) {
        return missing("redis-rb", "ruby gem-redis");
    }
    // The first error ends what it tells of several.
    let in_batch = |answer: &'static str| Some(answer).filter(|answer| !answer.starts_with('-'));
    let client = client("redis-rb", "", "ruby", "redis_rb.rb");
    print_row(&Client { protocols: &[], in_batch, ..client }.row());
}

#[test]
fn phpredis_in_all_its_ways() {
    if !succeeds("php", &["-r", "exit(extension_loaded('redis') ? 0 : 1);"]) {
        return missing("phpredis", "php php-redis");
    }
    // Of several it tells of errors and statuses only that they came.
    let in_batch = |answer: &'static str| match answer {
        "\"OK\"" | "\"RESET\"" => Some("true"),
        error if error.starts_with('-') => Some("-"),
        other => Some(other),
    };
    let client = client("phpredis", "", "php", "phpredis.php");
    print_row(&Client { protocols: &[], in_batch, ..client }.row());
}

#[test]
fn hiredis_in_all_its_ways() {
    let header = std::fs::read_to_string("/usr/include/hiredis/hiredis.h").unwrap_or_default();
    if found("cc").is_none() || header.is_empty() {
        return missing("hiredis", "cc /usr/include/hiredis/hiredis.h");
    }
    // RESP3 came with 1.0.
    let protocols: &[_] = if header.contains("#define HIREDIS_MAJOR 0") { &["2"] } else { &["2", "3"] };
    let directory = tempfile::tempdir().expect("a directory");
    let built = directory.path().join("hiredis");
    output(
        Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&built)
            .arg(driver("hiredis.c"))
            .arg("-lhiredis"),
        "",
    );
    let client = client("hiredis", "", &built, "hiredis.c");
    print_row(&Client { command: Command::new(built), protocols, ..client }.row());
}

/// Starting a JVM costs more than what is asked, so it is started quickly rather than made to run fast.
fn java() -> Command {
    let (classes, jars) = (installed("jvm/classes"), installed("jvm/jars"));
    let mut command = Command::new("java");
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp"]);
    command.arg(format!("{}:{}/*", classes.display(), jars.display()));
    command
}

/// A client for the JVM, which cannot open a Unix socket.
fn jvm(name: &'static str, version: &'static str) {
    let mut command = java();
    command.args(["Driver", &name.to_lowercase()]);
    let protocols = &["default", "2", "3"];
    print_row(&Client { name, version, command, protocols, ways: WAYS, is_remote: true, in_batch: ALL }.row());
}

#[test]
fn jedis_in_all_its_ways() {
    if found("java").is_none() || found("mvn").is_none() {
        return missing("Jedis", "java mvn");
    }
    jvm("Jedis", "8.");
}

#[test]
fn lettuce_in_all_its_ways() {
    if found("java").is_none() || found("mvn").is_none() {
        return missing("Lettuce", "java mvn");
    }
    jvm("Lettuce", "7.");
}

#[test]
fn valkey_glide_in_all_its_ways() {
    if found("java").is_none() || found("mvn").is_none() || !cfg!(target_arch = "x86_64") {
        return missing("valkey-glide", "java mvn");
    }
    jvm("valkey-glide", "2.");
}

/// Its defaults open a pool of connections before anything is asked.
#[test]
fn redisson_asks_by_a_script() {
    if found("java").is_none() || found("mvn").is_none() {
        return missing("Redisson", "java mvn");
    }
    let daemon = Daemon::start("tcp = \"127.0.0.1:0\"\n[policy.api]\nlimits = [\"3/1h fixed\"]\n");
    let said = output(java().arg("Scripted").arg(daemon.tcp().to_string()), "");
    let (version, answers) = said.split_once('\n').expect("a version and answers");
    assert_eq!(answers, "[0, 3, 2, -1, 2]\n[0, 3, 1, -1, 4]\n[0, 3, 0, -1, 6]\n");
    print_row(&format!("| Redisson | {version} | RESP2 | over TCP; a script, alone | 3 | - |"));
}

#[test]
fn go_redis_in_all_its_ways() {
    if found("go").is_none() {
        return missing("go-redis", "go");
    }
    let command = Command::new(installed("goredis"));
    let (name, version, protocols) = ("go-redis", "9.", &["default", "2", "3"]);
    print_row(&Client { name, version, command, protocols, ways: WAYS, is_remote: true, in_batch: ALL }.row());
}

fn redis_cli(daemon: &Daemon, arguments: &str) -> String {
    output(Command::new("redis-cli").arg("-s").arg(daemon.socket()).args(arguments.split(' ')), "")
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
fn redis_cli_on_a_terminal_shows_hints_and_help() {
    const SEEN: &[(&str, &str)] = &[
        ("CL.THROTTLE ", "key max_burst count period [quantity]"),
        ("RATION.CHECK ", "policy key [COST cost] [PEEK]"),
        ("ration.mcheck ", "count policy key cost [policy key cost ...]"),
        ("RATION.HEADERS ", "policy key [COST cost] [STYLE draft|x|github]"),
        ("PING ", "[message]"),
        ("HELLO ", "[protover] [AUTH username password] [SETNAME clientname]"),
        ("help ration.check", "Checks and charges a key under a policy; answers a decision."),
        ("help @rationd", "RATION.PEERS"),
        ("RATION.CHECK api \"typed key\"", "3) (integer) 2"),
        ("RATION.CHECK apo key", "(error) ERR unknown policy 'apo': did you mean 'api'?"),
        ("RATION.CHEK api key", "(did you mean RATION.CHECK?)"),
        ("CLIENT HELP", "SETNAME <name>"),
    ];
    let lines: String = SEEN.iter().map(|(typed, wanted)| format!("{typed}\n{wanted}\n")).collect();
    let mut seen = 0;
    for options in [&[][..], &["-3"]] {
        let daemon = daemon();
        let mut command = Command::new("python3");
        let said = output(command.arg(driver("redis_cli.py")).arg(daemon.socket()).args(options), &lines);
        assert_eq!(said.lines().count(), SEEN.len(), "{said}");
        seen += SEEN.len();
    }
    for depth in DEPTHS {
        pipe(depth, ["", ""]);
        pipe(depth, ["MULTI\r\n", "EXEC\r\n"]);
    }
    let (version, asked) = (version("redis-cli", "--version"), "on a terminal: hints, `help`, answers; `--pipe`");
    print_row(&format!("| redis-cli | {version} | RESP2, RESP3 | {asked} | {seen} | {} |", depths()));
}

/// So many checks through `redis-cli --pipe`, between these commands.
fn pipe(depth: usize, [begin, end]: [&str; 2]) {
    let daemon = Daemon::start(DEEP_POLICY);
    let input = [begin, &"RATION.CHECK api piped\r\n".repeat(depth), end].concat();
    let said = output(Command::new("redis-cli").arg("-s").arg(daemon.socket()).arg("--pipe"), &input);
    let replies = depth + usize::from(!begin.is_empty()) + usize::from(!end.is_empty());
    assert!(said.contains(&format!("errors: 0, replies: {replies}\n")), "{depth} {begin}: {said}");
    assert_charged(&daemon, "piped", depth, &format!("redis-cli --pipe {depth} {begin}"));
}

#[test]
fn redis_benchmark_charges_each_check_once() {
    const CHECKS: i64 = 2000;
    let daemon = Daemon::start("[policy.bench]\nlimits = [\"5000/1d fixed from-first\"]\n");
    let mut charged = 0;
    for pipeline in ["1", "16"] {
        for (asked, peek) in [
            (format!("CL.THROTTLE bench{pipeline} 4999 1 86400"), " 0"),
            (format!("RATION.CHECK bench bench{pipeline}"), " PEEK"),
        ] {
            let said = output(
                Command::new("redis-benchmark")
                    .arg("-s")
                    .arg(daemon.socket())
                    .args(["-n", &CHECKS.to_string(), "-c", "20", "-q", "-P", pipeline])
                    .args(asked.split(' ')),
                "",
            );
            assert!(said.contains("requests per second"), "{said}");
            let left = daemon.ask(&(asked + peek));
            assert_eq!(left.items()[..3], [Reply::Int(0), Reply::Int(5000), Reply::Int(5000 - CHECKS)]);
            charged += CHECKS;
        }
    }
    let daemon = Daemon::start(DEEP_POLICY);
    for depth in DEPTHS {
        let (key, count) = (format!("deep{depth}"), depth.to_string());
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(daemon.socket()).args(["-c", "1", "-q", "-n", &count, "-P", &count]);
        let said = output(command.args(["RATION.CHECK", "api", &key]), "");
        assert!(said.contains("requests per second"), "{said}");
        assert_charged(&daemon, &key, depth, &format!("redis-benchmark -P {depth}"));
    }
    let version = version("redis-benchmark", "--version");
    let deep = depths();
    print_row(&format!(
        "| redis-benchmark | {version} | RESP2 | `-P 1`, `-P 16` | {charged} charged | {deep} (not in `MULTI`) |"
    ));
}
