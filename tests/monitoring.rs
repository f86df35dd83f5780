//! What watches daemons works: promtool finds nothing to say of their metrics, and runs the tests of the alerts; a real
//! Prometheus with the rules of deploy/prometheus scrapes a real fleet, answers every query of the dashboards in
//! deploy/grafana, and fires an alert when the store is killed. Each alert has its section of the book.
//!
//! Where there is no Prometheus, what wants it is skipped, and the tests say so: `tests/run tools` installs it for root.

use crate::support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::deployed::found;
use support::fleet::Issuer;
use support::metrics::get;
use support::poll::{wait_for, wait_until};
use support::process::Daemon;
use support::server::{Server, free_port};
use support::skip::skipped;
use tempfile::TempDir;

/// The files that Prometheus reads.
const RULES: [&str; 2] = ["recording.yml", "alerts.yml"];

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(deploy(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

/// The program, or what is said where it is missing.
fn program(name: &str, what: &str) -> Option<PathBuf> {
    let program = found(name);
    if program.is_none() {
        skipped(what, &format!("no {name} here; `tests/run tools` says more"), name);
    }
    program
}

/// What a program says in both of its outputs, which ends well.
fn says(program: &Path, words: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(words)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    child.stdin.take().expect("it was asked for").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it is our child");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{words:?}: {text}");
    text
}

/// Daemons that are a fleet on one store, and have decided.
struct Fleet {
    redis: Server,
    daemons: Vec<Daemon>,
    /// Its files are read again while the daemons run.
    _issuer: Issuer,
}

impl Fleet {
    fn start(nodes: usize) -> Self {
        let redis = Server::plain();
        let issuer = Issuer::new("watched");
        let mut daemons: Vec<Daemon> = Vec::new();
        for number in 0..nodes {
            let section = issuer.node(&format!("node-{number}"));
            let seeds: Vec<_> = daemons.first().map(Daemon::fleet_address).into_iter().collect();
            let store = format!("[store]\nurl = {:?}\n\n", redis.url());
            let policies = "[policy.api]\nlimits = [\"5/1h fixed\"]\n\n";
            let section = format!("{}\nseeds = {seeds:?}\n", section.trim_end());
            daemons.push(Daemon::start(&format!("{store}{policies}{section}")));
        }
        let fleet = Self { redis, daemons, _issuer: issuer };
        wait_until("the fleet is whole", 20, || {
            let up = |daemon: &Daemon| daemon.metrics().sum("rationd_fleet_nodes", &["state=\"up\""]) as usize;
            fleet.daemons.iter().all(|daemon| up(daemon) == nodes)
        });
        fleet.ask();
        fleet
    }

    /// Each daemon admits and denies, and asks the store.
    fn ask(&self) {
        for daemon in &self.daemons {
            let mut client = daemon.connect().expect("it accepts");
            for _ in 0..9 {
                client.ask_text("RATION.CHECK api k").expect("an answer");
            }
        }
    }
}

/// A Prometheus with the rules of deploy/, dead when dropped.
struct Prometheus {
    child: Child,
    directory: TempDir,
    address: SocketAddr,
}

impl Prometheus {
    /// Has it scrape `targets` twice a second. Alerts wait for a second only. Whoever takes its port makes it try another.
    fn start(program: &Path, targets: &[SocketAddr]) -> Self {
        for _ in 0..5 {
            let directory = TempDir::new().expect("a directory");
            let path = |name: &str| directory.path().join(name);
            let targets: Vec<_> = targets.iter().map(SocketAddr::to_string).collect();
            let config = read("prometheus/prometheus.yml");
            let hosts = "[\"127.0.0.1:9464\"]";
            assert!(config.contains(hosts) && config.contains("_interval: 15s"), "{config}");
            let config = config.replace(hosts, &format!("{targets:?}")).replace("_interval: 15s", "_interval: 500ms");
            fs::write(path("prometheus.yml"), config).expect("a file");
            for name in RULES {
                let lines: Vec<_> = read(&format!("prometheus/{name}")).lines().map(str::to_owned).collect();
                let sooner = lines.into_iter().map(|line| match line.split_once("for: ") {
                    Some((indent, _)) => format!("{indent}for: 1s\n"),
                    None => line + "\n",
                });
                fs::write(path(name), sooner.collect::<String>()).expect("a file");
            }
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let log = File::create(path("log")).expect("a log file");
            let child = Command::new(program)
                .arg(format!("--config.file={}", path("prometheus.yml").display()))
                .arg(format!("--storage.tsdb.path={}", path("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a second handle"))
                .stderr(log)
                .spawn()
                .expect("it is there");
            let mut started = Self { child, directory, address };
            let is_ready = wait_for("Prometheus is ready, or ends", 60, || {
                if started.child.try_wait().expect("it is our child").is_some() {
                    return Some(false);
                }
                let listens = TcpStream::connect(address).is_ok();
                (listens && get(address, "/-/ready").0 == 200).then_some(true)
            });
            if is_ready {
                return started;
            }
        }
        panic!("Prometheus did not start on any of 5 ports");
    }

    /// The `data` of an answer of its API.
    fn ask(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out is not zero");
        // By HTTP/1.0, because it answers HTTP/1.1 in chunks.
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").expect("a request goes out");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer comes whole");
        let (_, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// What a query finds now.
    fn query(&self, text: &str) -> Vec<Value> {
        let encoded = percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
        self.ask(&format!("query?query={encoded}"))["result"].as_array().expect("a vector").clone()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names of all alerts, in the order of the file.
fn alerts() -> Vec<String> {
    let text = read("prometheus/alerts.yml");
    let names: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect();
    assert!(names.len() >= 10, "{names:?}");
    names
}

/// The title of each panel of a dashboard that asks something, with what it asks.
fn queries(dashboard: &str) -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(dashboard)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut found = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push((title.to_owned(), target["expr"].as_str().expect("a query").to_owned()));
        }
    }
    assert!(found.len() >= 20, "{found:?}");
    found
}

#[test]
fn promtool_has_nothing_to_say_of_the_metrics() {
    let Some(promtool) = program("promtool", "promtool on the metrics of a daemon") else { return };
    let fleet = Fleet::start(2);
    let (status, text) = get(fleet.daemons[0].admin(), "/metrics");
    assert_eq!(status, 200);
    for family in ["rationd_checks_total", "rationd_store_calls_total", "rationd_fleet_nodes", "process_open_fds"] {
        assert!(text.contains(&format!("# TYPE {family} ")), "{family} is not in {text}");
    }
    let said = says(&promtool, &["check", "metrics"], &text);
    assert_eq!(said.trim(), "", "promtool check metrics");
}

#[test]
fn what_the_process_uses_is_told() {
    let daemon = Daemon::start("[policy.api]\nlimits = [\"5/1h fixed\"]\n");
    let metrics = daemon.metrics();
    let value = |name: &str| {
        assert!(metrics.has(name), "{name} is missing");
        metrics.sum(name, &[])
    };
    assert!(value("process_cpu_seconds_total") < 60.0);
    assert!((1e6..1e10).contains(&value("process_resident_memory_bytes")), "{metrics:?}");
    assert!((5.0..value("process_max_fds")).contains(&value("process_open_fds")), "{metrics:?}");
    let began = value("process_start_time_seconds");
    let now = support::clock::wall_us() as f64 / 1e6;
    assert!((now - 60.0..=now).contains(&began), "began at {began}, it is {now}");
    assert_eq!(
        daemon.metrics().sum("process_start_time_seconds", &[]).to_bits(),
        began.to_bits(),
        "it does not wobble"
    );
    // Each has answered, so the daemon holds it. What else it has open may only become less meanwhile: right after the
    // start, that is connections of whoever waited for it to be ready.
    let mut held: Vec<_> = (0..20).map(|_| daemon.connect().expect("it listens")).collect();
    for connection in &mut held {
        assert_eq!(connection.ask_text("PING").expect("an answer").text(), "PONG");
    }
    let with = daemon.metrics().sum("process_open_fds", &[]);
    drop(held);
    wait_until("connections are open files", 20, || daemon.metrics().sum("process_open_fds", &[]) <= with - 20.0);
}

/// A page says when its alert fires as the rules do, so that the two do not drift apart.
#[test]
fn every_alert_has_a_page_of_the_book_and_two_tests() {
    let pages = deploy("../docs/operate/alerts");
    let index = fs::read_to_string(deploy("../docs/operate/alerts.md")).expect("the page of alerts");
    let (rules, tests) = (read("prometheus/alerts.yml"), read("prometheus/tests.yml"));
    let alerts = alerts();
    let rows = index.lines().filter_map(|line| line.strip_prefix("| [")?.split_once(']'));
    assert_eq!(rows.map(|(name, _)| name).collect::<Vec<_>>(), alerts, "the table has each, in the order of the file");
    assert_eq!(fs::read_dir(&pages).expect("pages").count(), alerts.len(), "no page is of an alert that is gone");
    for (name, rule) in alerts.iter().zip(rules.split("- alert: ").skip(1)) {
        let page = fs::read_to_string(pages.join(format!("{name}.md"))).expect(name);
        assert!(page.starts_with(&format!("# {name}\n")), "{page}");
        let field = |field: &str| rule.split_once(field).and_then(|(_, rest)| rest.split(['\n', ' ']).next());
        let expression = rule.split_once("expr: ").and_then(|(_, rest)| rest.lines().next()).expect("an expression");
        let lasts = rule.contains(" for: ").then(|| field(" for: ")).flatten();
        let lasts = lasts.map_or_else(String::new, |span| format!(" for {span}"));
        let fires = format!("Fires when `{expression}`{lasts}; severity {}.\n", field("severity: ").expect("one"));
        assert!(page.contains(&fires), "{name} does not say: {fires}");
        assert!(
            rule.contains(&format!("runbook_url: docs/operate/alerts/{name}.md\n")),
            "{name} does not name its page"
        );
        assert!(tests.contains(&format!("- name: {name} fires\n")), "{name} has no test that it fires");
        assert!(tests.contains(&format!("- name: {name} does not fire\n")), "{name} has no test that it does not");
    }
}

/// Whoever is called at night follows the link of the alert, and a path in this repository is none. No address of the book is known
/// here, so the page on monitoring has a command that puts one in.
#[test]
fn one_command_makes_the_runbooks_addresses() {
    let page = fs::read_to_string(deploy("../docs/operate/monitoring.md")).expect("the page on monitoring");
    let command =
        page.lines().find(|line| line.starts_with("sed -i") && line.contains("runbook_url")).expect("it has one");
    let address = "https://wiki.example/rationd/docs/";
    assert!(command.contains(address) && command.ends_with(" alerts.yml"), "{command}");
    let directory = tempfile::tempdir().expect("a directory");
    let rules = directory.path().join("alerts.yml");
    fs::copy(deploy("prometheus/alerts.yml"), &rules).expect("it is there");
    // Twice, as whoever is not sure does.
    for _ in 0..2 {
        says(Path::new("sh"), &["-c", &format!("cd {:?} && {command}", directory.path())], "");
    }
    let set = fs::read_to_string(&rules).expect("it is there");
    let found: Vec<_> = set.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    let wanted: Vec<_> = alerts().iter().map(|name| format!("{address}operate/alerts/{name}.md")).collect();
    assert_eq!(found, wanted);
    if let Some(promtool) = program("promtool", "the rules with addresses of runbooks") {
        says(&promtool, &["check", "rules", &rules.display().to_string()], "");
    }
}

#[test]
fn promtool_runs_the_tests_of_the_alerts() {
    let Some(promtool) = program("promtool", "the tests of the alerts") else { return };
    let config = deploy("prometheus/prometheus.yml");
    says(&promtool, &["check", "config", &config.display().to_string()], "");
    let tests = deploy("prometheus/tests.yml");
    let said = says(&promtool, &["test", "rules", &tests.display().to_string()], "");
    assert!(said.contains("SUCCESS"), "{said}");
}

/// Names of metrics in a query: words that a family's name could be.
fn families(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let known = |word: &&str| word.contains("rationd_") || word.starts_with("process_");
    words.filter(known).map(str::to_owned).collect()
}

#[test]
fn a_prometheus_answers_the_dashboards_and_fires_when_the_store_is_killed() {
    let Some(prometheus) = program("prometheus", "the dashboards and the alerts in a Prometheus") else { return };
    let mut fleet = Fleet::start(3);
    let targets: Vec<_> = fleet.daemons.iter().map(Daemon::admin).collect();
    let prometheus = Prometheus::start(&prometheus, &targets);

    let instance = targets[0].to_string();
    for dashboard in ["grafana/node.json", "grafana/fleet.json"] {
        for (panel, query) in queries(dashboard) {
            let query = query.replace("$job", "rationd").replace("$instance", &instance);
            let query = query.replace("$__rate_interval", "30s");
            assert!(!query.contains('$'), "{panel}: {query}");
            wait_until(&format!("{dashboard}, {panel}: {query} finds something"), 60, || {
                // Rates are of what has changed since the first scrape.
                fleet.ask();
                !prometheus.query(&query).is_empty()
            });
        }
    }
    // Every rule can be evaluated, and all that it names is there: an alert on a name that nobody serves never fires.
    let groups = prometheus.ask("rules");
    let rules: Vec<&Value> = groups["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .flat_map(|group| group["rules"].as_array())
        .flatten()
        .collect();
    assert_eq!(rules.iter().filter(|rule| rule["type"] == "alerting").count(), alerts().len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        for family in families(rule["query"].as_str().expect("a query")) {
            wait_until(&format!("{family} is there, which {} asks for", rule["name"]), 30, || {
                !prometheus.query(&family).is_empty()
            });
        }
    }

    let firing = || {
        let found = prometheus.query("ALERTS{alertstate=\"firing\"}");
        found
            .iter()
            .filter_map(|alert| alert["metric"]["alertname"].as_str().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    let quiet = |name: &str| !firing().contains(name);
    assert!(quiet("RationdStoreAway") && quiet("RationdDown"), "{:?}\n{}", firing(), prometheus.log());
    fleet.redis.kill();
    wait_until("an alert says that the store is away", 30, || {
        fleet.ask();
        firing().contains("RationdStoreAway")
    });
    fleet.redis.restart();
    wait_until("the alert ends when the store is back", 30, || {
        fleet.ask();
        quiet("RationdStoreAway")
    });
    fleet.daemons[2].kill();
    wait_until("an alert says that a daemon is down", 30, || firing().contains("RationdDown"));
}
