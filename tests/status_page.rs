//! The status page in a browser: it is live, and shows within two seconds that the store is away.
//!
//! Chromium is asked over its debugging pipe. Where there is none, the test says that it is skipped.

use crate::support;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::clock::Watch;
use support::deployed::found;
use support::fleet::Issuer;
use support::poll::wait_for;
use support::process::Daemon;
use support::server::Server;
use support::skip::skipped;
use tempfile::TempDir;

const POLICIES: &str = "[policy.api]\nlimits = [\"1000/1s\"]\n[policy.login]\nlimits = [\"5/1m sliding\"]\n";

/// A browser without a window. Requests and answers end with a zero byte.
struct Browser {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    id: u64,
    session: String,
    _directory: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    fn open(program: &std::path::Path, address: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (to, from) = (directory.path().join("to"), directory.path().join("from"));
        let made = Command::new("mkfifo").args([&to, &from]).status().expect("mkfifo exists");
        assert!(made.success());
        // It reads from descriptor 3 and writes to 4.
        let line = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --window-size=1200,1000 --user-data-dir=\"$1\" --remote-debugging-pipe about:blank 3<\"$2\" 4>\"$3\"";
        let child = Command::new("sh")
            .args(["-c", line])
            .arg(program)
            .arg(directory.path().join("profile"))
            .args([&to, &from])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        // The shell opens both in this order.
        let requests = OpenOptions::new().write(true).open(&to).expect("the browser reads");
        let answers = BufReader::new(File::open(&from).expect("the browser writes"));
        let session = String::new();
        let mut browser = Self { child, requests, answers, id: 0, session, _directory: directory };
        let target = browser.ask("Target.createTarget", json!({"url": address}))["targetId"].clone();
        let attached = browser.ask("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut request = json!({"id": self.id, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).expect("the browser reads");
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == self.id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// What an expression in the page is.
    fn value(&mut self, expression: &str) -> Value {
        let told = self.ask("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        told["result"]["value"].clone()
    }

    fn text(&mut self, id: &str) -> String {
        self.value(&format!("document.getElementById('{id}')?.innerText ?? ''")).as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_browser_sees_within_two_seconds_that_the_store_is_away() {
    let Some(program) = ["chromium", "chromium-browser", "google-chrome"].iter().find_map(|name| found(name)) else {
        return skipped("the status page in a browser", "no chromium: apt-get install chromium", "chromium");
    };
    let redis = Server::plain();
    let store = format!("redis://127.0.0.1:{}", redis.port);
    let issuer = Issuer::new("prod");
    let fleet = format!("{}\nowner = \"auto\"", issuer.node("app-17"));
    let daemon = Daemon::start(&format!("admin_keys = true\n[store]\nurl = \"{store}\"\n{fleet}\n{POLICIES}"));
    let mut client = daemon.connect().expect("it listens");
    let mut load = |times: usize| {
        for number in 0..times {
            let key = ["acct:acme", "acct:acme", "acct:acme", "acct:initech", "ip:10.0.0.7"][number % 5];
            client.ask_text(&format!("RATION.CHECK api {key}")).expect("an answer");
            client.ask_text(&format!("RATION.CHECK login {key}")).expect("an answer");
        }
    };
    load(50);
    let mut browser = Browser::open(&program, &format!("http://{}/", daemon.admin()));
    wait_for("the page is live", 30, || (browser.text("state") == "live").then_some(()));
    wait_for("the charts are drawn, and have rates", 30, || {
        load(20);
        let policies = browser.text("policies");
        (browser.value("document.querySelectorAll('#charts polyline').length") == 6
            && policies.lines().any(|line| {
                line.starts_with("api") && line.split('\t').nth(1).is_some_and(|rate| rate != "0" && rate != "–")
            }))
        .then_some(())
    });
    assert!(browser.text("used").contains("acct:acme"), "{}", browser.text("used"));
    // What each node of the fleet tells, with rates once it has been asked twice.
    let node = wait_for("the node's own sums have rates", 30, || {
        load(20);
        let peers = browser.text("peers");
        let node = peers.lines().find(|line| line.starts_with("app-17"))?;
        let cells: Vec<String> = node.split('\t').map(str::to_owned).collect();
        cells.get(5).is_some_and(|rate| rate.parse::<u64>().is_ok_and(|rate| rate > 0)).then_some(cells)
    });
    assert_eq!((&node[3..5], node[7].as_str(), node[8].as_str()), (&["this node".into(), "6".into()][..], "6", "up"));
    if let Some(path) = std::env::var_os("RATIOND_SCREENSHOT") {
        // For the manual: its pictures were taken so, of a node of a fleet of three after fifteen minutes of checks.
        let shot = browser.ask("Page.captureScreenshot", json!({"format": "png"}));
        fs::write(path, decoded(shot["data"].as_str().expect("a picture"))).expect("a file");
    }
    drop(redis);
    let cut = Watch::start();
    wait_for("the page shows that the store is away", 30, || {
        (browser.text("servers").contains("AWAY") && browser.text("state").contains("away")).then_some(())
    });
    let after = cut.elapsed();
    assert!(after.as_millis() <= 2_000, "shown after {after:?}");
}

/// Base 64.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for c in text.bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
