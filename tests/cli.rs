//! The command line as scripts and people meet it: exit codes, help, JSON, signals.

use crate::support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::clock::Watch;
use support::poll::wait_until;
use support::process::{Daemon, without_settings};
use support::server::Server;

const POLICIES: &str = "[policy.api]\nlimits = [\"3/1h fixed\"]\n";

/// Runs `rationd` without any variable of this environment that it would read.
fn rationd(words: &[&str]) -> Output {
    command(words).output().expect("cargo built it")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.args(words);
    command
}

fn ask(daemon: &Daemon, words: &[&str]) -> Output {
    let socket = daemon.socket();
    let socket = socket.to_str().expect("a plain path");
    rationd(&[&["--socket", socket], words].concat())
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ended by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
}

#[test]
fn wrong_words_end_with_2_and_a_usage() {
    for words in [&["chekc"][..], &["check", "api"], &["--colour"], &["check", "api", "k", "--cost", "x"]] {
        let output = rationd(words);
        assert_eq!(code(&output), 2, "{words:?}: {output:?}");
        assert!(stdout(&output).is_empty() && stderr(&output).contains("--help"), "{output:?}");
    }
}

#[test]
fn every_flag_names_its_variable() {
    for command in ["serve", "check", "reload", "policies", "keys"] {
        let help = stdout(&rationd(&[command, "--help"]));
        let options = help.split("Options:").nth(1).unwrap_or_else(|| panic!("no options in {help}"));
        let options = options.split("\nExit codes").next().expect("a first part");
        // An option begins with a dash after spaces; its text goes on until the next one.
        let mut blocks: Vec<String> = Vec::new();
        for line in options.lines() {
            if line.trim_start().starts_with("-") && line.trim_start().contains("--") {
                blocks.push(String::new());
            }
            if let Some(block) = blocks.last_mut() {
                block.push_str(line.trim());
                block.push(' ');
            }
        }
        assert!(blocks.len() >= 7, "{help}");
        for block in blocks.iter().filter(|block| !block.contains("--help") && !block.contains("--version")) {
            assert!(block.contains("[env: RATIOND_"), "{command}: {block}");
        }
    }
}

#[test]
fn a_key_that_everybody_can_read_is_refused_unless_it_is_forced() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    for name in ["ca.pem", "node.pem", "node.key"] {
        std::fs::write(path(name), "no PEM").expect("a file");
    }
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(path("node.key"), open).expect("it is ours");
    let files = "ca = \"ca.pem\"\ncert = \"node.pem\"\nkey = \"node.key\"\n";
    let config = format!("[fleet]\nname = \"prod\"\nlisten = \"127.0.0.1:0\"\n{files}");
    std::fs::write(path("rationd.toml"), config).expect("a file");
    let (config, socket) = (path("rationd.toml"), path("sock"));
    let words = ["-c", config.to_str().expect("plain"), "-s", socket.to_str().expect("plain"), "serve"];
    let output = rationd(&[&words[..], &["--admin", "off"]].concat());
    assert_eq!(code(&output), 78, "{output:?}");
    assert!(stderr(&output).contains("(mode 0644): chmod o= ") && stderr(&output).contains("--force"), "{output:?}");
    let output = rationd(&[&words[..], &["--admin", "off", "--force"]].concat());
    assert_eq!(code(&output), 78, "{output:?}");
    assert!(stderr(&output).contains("is open to everybody"), "it is told all the same: {output:?}");
    assert!(stderr(&output).contains("no certificate in PEM"), "that is as far as it gets: {output:?}");
}

#[test]
fn an_absent_daemon_ends_with_69_and_the_next_step() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("none.sock");
    let socket = socket.to_str().expect("a plain path");
    for words in [&["check", "api", "k"][..], &["reload"], &["policies"], &["keys"]] {
        let output = rationd(&[&["-s", socket], words].concat());
        assert_eq!(code(&output), 69, "{words:?}: {output:?}");
        assert!(stderr(&output).contains("start one with `rationd serve`"), "{output:?}");
        assert!(stdout(&output).is_empty());
    }
}

#[test]
fn a_bad_configuration_ends_with_78() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rationd.toml");
    write(&file, "[listen]\nsokcet = \"x\"\n");
    let file = file.to_str().expect("a plain path");
    for words in [&["config", "check"][..], &["config", "show"], &["serve"]] {
        let output = rationd(&[&["-c", file], words].concat());
        assert_eq!(code(&output), 78, "{words:?}: {output:?}");
        assert!(stderr(&output).contains("did you mean `socket`?"), "{output:?}");
    }
    let output = rationd(&["-c", file, "-o", "json", "config", "check"]);
    let answer = json(&output);
    assert_eq!((code(&output), &answer["ok"]), (78, &serde_json::Value::Bool(false)));
    assert_eq!(answer["errors"][0]["hint"], "did you mean `socket`?");
    assert_eq!(code(&rationd(&["-c", "/nonexistent/x.toml", "config", "check"])), 78);
}

/// With it a daemon would come up with a store of its own, and each node would admit the whole limit.
#[test]
fn a_slip_in_the_name_of_a_variable_ends_with_78() {
    for words in [&["serve", "--admin", "off"][..], &["config", "check"], &["reset", "api", "k"]] {
        let output = command(words).env("RATIOND_STORE_URL", "redis://127.0.0.1:1").output().expect("cargo built it");
        assert_eq!(code(&output), 78, "{words:?}: {output:?}");
        assert!(stderr(&output).contains("did you mean `RATIOND_STORE__URL`?"), "{output:?}");
    }
    let every = ["RATIOND_LOG", "RATIOND_COUNT", "RATIOND_BENCH_RATE", "RATIOND_CERT_DIR", "RATIOND_COLOR"];
    let mut flags = command(&["config", "check"]);
    for name in every {
        flags.env(name, if name == "RATIOND_COLOR" { "never" } else { "1" });
    }
    let output = flags.env("RATIOND_LOG", "warn").output().expect("cargo built it");
    assert_eq!(code(&output), 0, "{output:?}");
}

#[test]
fn a_log_that_would_say_nothing_is_refused() {
    for filter in ["nonsense", "nonsense=debug", "info,stroe", "rationd", "info,[drive]=debug", "rationd[{id=7}]=trace"]
    {
        for words in [&["serve", "--admin", "off"][..], &["config", "check"]] {
            let output = command(words).env("RATIOND_LOG", filter).output().expect("cargo built it");
            assert_eq!(code(&output), 78, "{filter}, {words:?}: {output:?}");
            assert!(stderr(&output).contains("a level (error, warn, info"), "{output:?}");
        }
    }
    for filter in ["debug", "INFO", "off", "info,rationd::store=debug", "rationd=trace", "warn, quinn=off,"] {
        let output = command(&["config", "check"]).env("RATIOND_LOG", filter).output().expect("cargo built it");
        assert_eq!(code(&output), 0, "{filter}: {output:?}");
    }
}

/// The default socket is another daemon's, as likely as not.
#[test]
fn with_a_broken_configuration_nobody_is_asked() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rationd.toml");
    write(&file, "[listen]\nsocket = \"own.sock\"\n[policy.api]\nlimits = [\"1/1y\"]\n");
    let file = file.to_str().expect("a plain path");
    for words in [&["reset", "api", "u1"][..], &["refund", "api", "u1", "1"], &["check", "api", "u1"], &["reload"]] {
        let output = rationd(&[&["-c", file], words].concat());
        assert_eq!(code(&output), 78, "{words:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("\"1y\" where a period") && said.contains("no daemon was asked"), "{said}");
    }
}

#[test]
fn a_socket_that_may_not_be_opened_says_so() {
    let daemon = Daemon::start(POLICIES);
    fs::set_permissions(daemon.socket(), std::os::unix::fs::PermissionsExt::from_mode(0o000)).expect("it is ours");
    let socket = daemon.socket();
    // Root may open everything, unless it gives that up.
    let root = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").expect("there is a /proc")) == 0;
    let mut asking = if root { Command::new("setpriv") } else { command(&[]) };
    if root {
        asking.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_rationd")]);
    }
    let output = asking.arg("--socket").arg(&socket).args(["check", "api", "k"]).output().expect("setpriv exists");
    assert_eq!(code(&output), 69, "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("may not be opened: Permission denied") && said.contains("listen.group"), "{said}");
    assert!(said.contains("mode 0000") && !said.contains("start one with"), "{said}");
}

#[test]
fn what_only_this_machine_can_tell_is_checked_too() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rationd.toml");
    write(
        &file,
        "[listen]\ngroup = \"no such group\"\n[log]\nlevel = \"a=b=c\"\n[store]\nurl = \"rediss://h:1\"\nca = \"none.pem\"\n",
    );
    let output = rationd(&["-c", file.to_str().expect("a plain path"), "config", "check"]);
    let text = stderr(&output);
    assert_eq!(code(&output), 78, "{output:?}");
    for wanted in [":2: listen.group is", ":4: log.level is", ":7: store.ca "] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
}

#[test]
fn init_prints_a_configuration_that_is_right() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rationd.toml");
    write(&file, &stdout(&rationd(&["config", "init"])));
    let file = file.to_str().expect("a plain path");
    let output = rationd(&["-c", file, "config", "check"]);
    assert_eq!(stdout(&output), format!("ok: 1 policies ({file})\n"), "{output:?}");
    let shown = json(&rationd(&["-c", file, "-o", "json", "config", "show"]));
    let line =
        1 + rationd::config::SAMPLE.lines().position(|line| line.starts_with("timeout = ")).expect("it is there");
    let entry = shown.as_array().expect("a list").iter().find(|entry| entry["key"] == "store.timeout").expect("a key");
    assert_eq!((&entry["value"], entry["origin"].as_str()), (&"\"50ms\"".into(), Some(&*format!("{file}:{line}"))));
}

#[test]
fn checks_end_with_0_until_the_limit_is_spent_and_with_1_then() {
    let daemon = Daemon::start(POLICIES);
    for left in [2, 1, 0] {
        let output = ask(&daemon, &["-o", "json", "check", "api", "user:1"]);
        let answer = json(&output);
        assert_eq!((code(&output), &answer["remaining"]), (0, &left.into()), "{output:?}");
        assert_eq!((&answer["verdict"], &answer["limit"]), (&"allow".into(), &3.into()));
    }
    let peek = ask(&daemon, &["check", "api", "user:2", "--cost", "3", "--peek"]);
    assert!(stdout(&peek).starts_with("allowed: 3 of 3 left"), "{peek:?}");
    let output = ask(&daemon, &["check", "api", "user:1"]);
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    assert!(text.starts_with("limited: 0 of 3 left, whole again in ") && text.contains("retry in "), "{text}");
    let output = ask(&daemon, &["check", "apj", "user:1"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("did you mean 'api'?"), "{output:?}");
}

#[test]
fn a_denial_for_want_of_a_store_ends_with_75() {
    let daemon = Daemon::start(
        "[store]\nurl = \"redis+unix:///nonexistent/redis.sock\"\n\
         [policy.shut]\nlimits = [\"3/1h fixed\"]\non_store_loss = \"deny\"\n",
    );
    let output = ask(&daemon, &["check", "shut", "user:1"]);
    assert_eq!(code(&output), 75, "{output:?}; log:\n{}", daemon.log());
}

#[test]
fn policies_and_keys_are_listed() {
    let daemon = Daemon::start(&format!(
        "{POLICIES}[policy.api.override.\"acct:acme\"]\nblocked = true\n\
         [policy.api.override.\"team:*\"]\nlimits = [\"7/1h fixed\"]\n"
    ));
    assert_eq!(code(&ask(&daemon, &["check", "api", "user:1"])), 0);
    let table = stdout(&ask(&daemon, &["policies"]));
    assert!(table.lines().any(|line| line.contains("team:*") && line.ends_with("7/1h fixed")), "{table}");
    let explained = stdout(&ask(&daemon, &["explain", "api", "team:red"]));
    assert!(explained.contains("7/1h fixed (of override \"team:*\")"), "{explained}");
    assert!(table.lines().any(|line| line.contains("acct:acme") && line.ends_with("blocked")), "{table}");
    let listed = json(&ask(&daemon, &["-o", "json", "policies"]));
    assert_eq!(listed[0]["limits"][0], "3/1h fixed");
    let keys = json(&ask(&daemon, &["-o", "json", "keys"]));
    assert_eq!((&keys[0]["key"], &keys[0]["policy"]), (&"user:1".into(), &"api".into()));
    assert!(stdout(&ask(&daemon, &["keys"])).contains("user:1"));
}

#[test]
fn a_reload_is_taken_whole_or_not_at_all() {
    let daemon = Daemon::start(POLICIES);
    let head: String = fs::read_to_string(daemon.config()).expect("its file").replace(POLICIES, "");
    write(
        &daemon.config(),
        &format!("{head}[policy.api]\nlimits = [\"9/1h fixed\"]\n[policy.web]\nlimits = [\"1/1y\"]\n"),
    );
    let output = ask(&daemon, &["reload"]);
    assert_eq!(code(&output), 78, "{output:?}");
    assert!(stderr(&output).contains("\"1y\" where a period"), "{output:?}");
    assert_eq!(daemon.metrics().sum("rationd_config_last_reload_successful", &[]), 0.0);
    assert_eq!(json(&ask(&daemon, &["-o", "json", "check", "api", "k"]))["limit"], 3, "the old one stays");

    write(&daemon.config(), &format!("{head}[node]\nmax_keys = 500\n[policy.api]\nlimits = [\"9/1h fixed\"]\n"));
    let answer = json(&ask(&daemon, &["-o", "json", "reload"]));
    assert_eq!(answer, serde_json::json!({"generation": 2, "policies": 1, "waiting_for_restart": ["node.max_keys"]}));
    assert_eq!(daemon.metrics().sum("rationd_config_last_reload_successful", &[]), 1.0);
    assert_eq!(json(&ask(&daemon, &["-o", "json", "check", "api", "k"]))["limit"], 9);
}

/// A dry run says which limits start anew, and a reload does just that: what was spent of the others still counts.
#[test]
fn a_dry_run_says_which_limits_start_anew() {
    let policy = |first: &str| format!("[policy.api]\nlimits = [{first}]\n[policy.web]\nlimits = [\"7/1d fixed\"]\n");
    let before = policy("\"9/1d fixed\", \"8/1d fixed\"");
    for head in ["", "[store]\nurl = {URL}\n"] {
        let server = Server::plain();
        let head = head.replace("{URL}", &format!("{:?}", server.url()));
        let daemon = Daemon::start(&format!("{head}{before}"));
        let remaining = |policy| json(&ask(&daemon, &["-o", "json", "check", policy, "k"]))["remaining"].clone();
        assert_eq!((remaining("api"), remaining("api"), remaining("web")), (7.into(), 6.into(), 6.into()));
        let text = fs::read_to_string(daemon.config()).expect("its file");
        let after = policy("\"5/1d fixed\", \"8/1d sliding\"").replace("7/1d", "6/1d");
        write(&daemon.config(), &text.replace(&before, &after));
        let told = stdout(&ask(&daemon, &["reload", "--dry-run"]));
        let lines: Vec<_> = told.lines().filter(|line| line.contains("starts anew")).collect();
        assert_eq!(lines, ["    ! \"8/1d sliding\" starts anew: in its place was 8/1d fixed"], "{told}");
        let told = json(&ask(&daemon, &["-o", "json", "reload", "--dry-run"]));
        assert_eq!(told["policies"][0]["starts_anew"][0]["limit"], "8/1d sliding", "{told}");
        assert_eq!(told["policies"][1]["starts_anew"], serde_json::json!([]), "{told}");
        assert_eq!(code(&ask(&daemon, &["reload"])), 0);
        assert_eq!((remaining("api"), remaining("web")), (2.into(), 4.into()), "two and one were spent");
        let explained = json(&ask(&daemon, &["-o", "json", "explain", "api", "k"]));
        let left: Vec<_> =
            explained["each"].as_array().expect("limits").iter().map(|each| &each["remaining"]).collect();
        assert_eq!(left, [2, 7], "{explained}");
    }
}

#[test]
fn sighup_reloads_whole_or_not_at_all() {
    let daemon = Daemon::start(POLICIES);
    let text = fs::read_to_string(daemon.config()).expect("its file");
    let told = |name| daemon.metrics().sum(name, &[]);
    write(&daemon.config(), &text.replace("3/1h fixed", "three"));
    daemon.signal("HUP");
    wait_until("the reload is refused", 10, || told("rationd_config_last_reload_successful") == 0.0);
    assert_eq!(json(&ask(&daemon, &["-o", "json", "check", "api", "k"]))["limit"], 3);
    assert!(daemon.log().contains("rationd.toml:6:11"), "{}", daemon.log());
    write(&daemon.config(), &text.replace("3/1h", "7/1h"));
    daemon.signal("HUP");
    wait_until("the reload is taken", 10, || told("rationd_config_generation") == 2.0);
    assert_eq!(told("rationd_config_last_reload_successful"), 1.0);
    assert_eq!(json(&ask(&daemon, &["-o", "json", "check", "api", "k"]))["limit"], 7);
}

#[test]
fn sigterm_ends_it_with_0_within_two_seconds() {
    let mut daemon = Daemon::start(POLICIES);
    let mut open = daemon.connect().expect("it accepts");
    open.ask_text("RATION.CHECK api user:1").expect("an answer");
    let watch = Watch::start();
    let status = daemon.terminate();
    let took = watch.elapsed();
    assert!(status.success(), "{status}; log:\n{}", daemon.log());
    assert!(took.as_millis() < 2_500, "it took {took:?}");
    assert!(!daemon.socket().exists(), "the socket's file is gone");
    assert!(daemon.log().contains("everything is settled"), "{}", daemon.log());
}

#[test]
fn sigint_ends_it_too_and_a_second_daemon_is_refused_while_it_lives() {
    let mut daemon = Daemon::start(POLICIES);
    let output = ask(&daemon, &["serve", "--admin", "off"]);
    assert_eq!(code(&output), 71, "{output:?}");
    assert!(stderr(&output).contains("already listens"), "{output:?}");
    daemon.signal("INT");
    wait_until("it leaves", 5, || !daemon.is_running());
}

#[test]
fn a_configured_admin_address_that_is_taken_ends_with_71() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("rationd.sock");
    let output = rationd(&["-s", socket.to_str().expect("a plain path"), "serve", "--admin", &address]);
    assert_eq!(code(&output), 71, "{output:?}");
    assert!(stderr(&output).contains("choose another listen.admin"), "{output:?}");
    assert!(!socket.exists(), "nobody listens");
}

#[test]
fn the_admin_address_answers_health_and_refuses_the_rest() {
    use support::metrics::get;
    let daemon = Daemon::start(POLICIES);
    let admin = daemon.admin();
    assert_eq!(get(admin, "/livez").0, 200);
    assert_eq!(get(admin, "/readyz").0, 200);
    assert_eq!(get(admin, "/").0, 200);
    assert_eq!(get(admin, "/nothing").0, 404);
    let (status, text) = get(admin, "/metrics");
    assert_eq!(status, 200);
    let key = "a-key-that-nobody-else-has";
    assert_eq!(code(&ask(&daemon, &["check", "api", key])), 0);
    assert!(!get(admin, "/metrics").1.contains(key), "no label holds a key");
    let declared: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        assert!(declared.iter().any(|family| name.starts_with(family)), "{name} has no TYPE");
    }
}
