//! Clients in all their ways: each is asked to send the same commands, and shows the same answers.
//!
//! A driver in the client's language (`tests/clients/drivers`) gets the commands as lines of hexadecimal words, and
//! writes each answer as one line of text: numbers as they are, `"text"`, `[arrays]` and `-errors`.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::process::{Daemon, signal};

/// What the daemon of each way knows: no window ends before the test does.
pub const POLICY: &str = "[policy.api]\nlimits = [\"5/1h fixed from-first\"]\n";

/// The user as whom clients ask over TCP, whose password is "secret".
const USERS: &str = "[app]\nadmin = true\n\
    password_sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\n";

/// What the daemon of a deep pipeline knows: so many checks of one key pass.
pub const DEEP_POLICY: &str = "[policy.api]\nlimits = [\"1000000/1h fixed from-first\"]\n";
pub const DEEP_LIMIT: i64 = 1_000_000;

/// How many checks of one key are asked at once: many clients write all of them before they read.
pub const DEPTHS: [usize; 3] = [1_000, 20_000, 100_000];

/// Longest that a client may take: who waits for a daemon that waits for it waits for ever.
const PATIENCE: Duration = Duration::from_secs(400);

/// Words between bars, and the answer, in which `*` stands for anything. In this order on one connection; keys are
/// Latin-1, so that any byte can be in one.
pub const CASES: &[(&str, &str)] = &[
    ("CL.THROTTLE|user:42|15|30|60", "[0 16 15 -1 2]"),
    ("CL.THROTTLE|user:42|15|30|60", "[0 16 14 -1 4]"),
    ("cl.throttle|user:42|15|30|60|20", "[1 16 14 -1 4]"),
    ("CL.THROTTLE|user:42|15|30|60|0", "[0 16 14 -1 4]"),
    ("CL.THROTTLE|user:42|15|30|60|-1", "[0 16 15 -1 2]"),
    ("CL.THROTTLE|one|0|1|60", "[0 1 0 -1 60]"),
    ("CL.THROTTLE|one|0|1|60", "[1 1 0 60 60]"),
    ("CL.THROTTLE|a\u{ff}\u{0}\r\n\u{fe} b|15|30|60", "[0 16 15 -1 2]"),
    ("CL.THROTTLE|a\u{ff}\u{0}\r\n\u{fe} b|15|30|60", "[0 16 14 -1 4]"),
    ("CL.THROTTLE|a\u{ff}\u{0}\r\n\u{fe} c|15|30|60", "[0 16 15 -1 2]"),
    ("CL.THROTTLE|user:42|x|30|60", "-*Couldn't parse as integer: x"),
    ("CL.THROTTLE|user:42|15|0|60", "-*Zero rates are not supported"),
    ("CL.THROTTLE|user:42", "-*Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"),
    ("THROTTLE|crab|1|1|60", "[1 1 0 0 0]"),
    ("THROTTLE|crab|1|1|60", "[0 1 0 0 60]"),
    ("EVAL|return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])|1|scripted|15|30|60", "[0 16 15 -1 2]"),
    (
        "SCRIPT|LOAD|return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])",
        "\"c305b0c988f72d6d6e22c904bcc0d535ed68b2a4\"",
    ),
    ("EVALSHA|c305b0c988f72d6d6e22c904bcc0d535ed68b2a4|1|scripted|15|30|60", "[0 16 14 -1 4]"),
    ("EVAL|return 1|0", "-*no scripts run here*use CL.THROTTLE or RATION.CHECK instead"),
    ("RATION.CHECK|api|ann", "[0 5 4 -1 * -1 * \"ok\" \"5/1h fixed from-first\" *]"),
    ("RATION.CHECK|api|ann", "[0 5 3 -1 * -1 * \"ok\" *]"),
    ("RATION.CHECK|api|ann", "[0 5 2 -1 * -1 * \"ok\" *]"),
    ("RATION.CHECK|api|ann", "[0 5 1 -1 * -1 * \"ok\" *]"),
    ("RATION.CHECK|api|ann", "[0 5 0 -1 * -1 * \"ok\" *]"),
    ("RATION.CHECK|api|ann", "[1 5 0 3* 3* 3* 1* \"rate\" \"5/1h fixed from-first\" *]"),
    ("RATION.REFUND|api|ann|2", "\"OK\""),
    ("RATION.CHECK|api|ann|COST|9|PEEK", "[1 5 2 -1 3* -1 * \"cost\" *]"),
    ("RATION.RESET|api|ann", "\"OK\""),
    ("RATION.CHECK|api|ann|PEEK", "[0 5 5 -1 *]"),
    ("RATION.MCHECK|2|api|bob|3|api|cat|1", "[0 [0 5 2 -1 *] [0 5 4 -1 *]]"),
    ("RATION.MCHECK|2|api|cat|1|api|bob|3", "[1 [0 5 4 -1 *] [1 5 2 *]]"),
    ("RATION.CHECK|api|cat|PEEK", "[0 5 4 -1 *]"),
    ("RATION.HEADERS|api|dan", "[0 \"ratelimit-policy\" \"*;q=5;w=3600\" \"ratelimit\" \"*;r=4;t=*\"]"),
    ("RATION.CHECK|api|dan|PEEK", "[0 5 4 -1 *]"),
    ("RATION.LEASE|api|eve|1", "[1 3* 0 5 4 -1 *]"),
    ("RATION.RETURN|api|eve|1", "\"OK\""),
    ("RATION.CHECK|api|eve|PEEK", "[0 5 5 -1 *]"),
    ("RATION.HOLD|api|fay|3", "[0 5 2 -1 * \"*\"]"),
    ("RATION.CHECK|api|fay|PEEK", "[0 5 2 -1 *]"),
    ("RATION.CHECK|apii|ann", "-*unknown policy 'apii': did you mean 'api'?"),
    ("RATION.CHECK|api", "-*wrong number of arguments for 'ration.check' command*"),
    ("RATION.CHECK|api|ann|TWICE", "-*syntax error*"),
    ("NO.SUCH|a", "-*unknown command 'NO.SUCH', with args beginning with: 'a'*"),
    ("SELECT|1", "-*DB index is out of range*"),
    ("RESET", "\"RESET\""),
    ("CL.THROTTLE|user:42|15|30|60", "[0 16 14 -1 4]"),
];

/// What is no command spoils a transaction, and `RESET` ends it.
fn can_be_queued(answer: &str) -> bool {
    answer.contains("unknown policy") || !(answer.starts_with('-') || answer == "\"RESET\"")
}

/// A client, and how it is run.
pub struct Client {
    pub name: &'static str,
    /// The version that this is a row for begins so.
    pub version: &'static str,
    pub command: Command,
    /// What its driver takes between the socket and the way; none where it speaks RESP2 only.
    pub protocols: &'static [&'static str],
    pub ways: &'static [&'static str],
    /// It asks over TCP, because it cannot open a Unix socket, or only with code of one's own.
    pub is_remote: bool,
    /// How it shows an answer to one of several at once; none where it would not tell the other answers then.
    pub in_batch: fn(&'static str) -> Option<&'static str>,
}

/// It shows each answer as it is.
pub const ALL: fn(&'static str) -> Option<&'static str> = |answer| Some(answer);
pub const WAYS: &[&str] = &["alone", "pipeline", "multi"];

pub fn driver(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/drivers").join(name)
}

/// Runs a program with this on its stdin to its end, and returns what it wrote to stdout.
///
/// # Panics
/// When it fails, or takes longer than any client should.
pub fn output(command: &mut Command, input: &str) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{program}: {error}; `tests/run tools` installs what it may"));
    let (process, (ended, end)) = (child.id(), mpsc::channel::<()>());
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            signal(process, "KILL");
        }
    });
    // Who ends early without reading says so by its status.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it is our child");
    drop(ended);
    let _ = guard.join();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} ended with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Whether `text` is what `pattern` says, whose `*` stand for anything.
pub fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let end = parts.pop().expect("a split has a last part");
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

fn hexadecimal(asked: &str) -> String {
    let word = |word: &str| word.chars().map(|byte| format!("{:02x}", u32::from(byte))).collect::<String>();
    asked.split('|').map(word).collect::<Vec<_>>().join(" ")
}

/// The depths of pipelines as the table shows them.
pub fn depths() -> String {
    DEPTHS.map(|depth| format!("{},000", depth / 1_000)).join("; ")
}

/// # Panics
/// When not just so many checks of the deep policy's key were charged.
pub fn assert_charged(daemon: &Daemon, key: &str, count: usize, place: &str) {
    let left = daemon.ask(&format!("RATION.CHECK api {key} PEEK")).items()[2].int();
    assert_eq!(DEEP_LIMIT - left, count as i64, "{place}: charged");
}

impl Client {
    /// Asks in every way, each of a fresh daemon, and returns its row of the table in docs/clients/redis.md.
    ///
    /// # Panics
    /// When an answer is another, or the client's version.
    pub fn row(&self) -> String {
        let (mut versions, mut compared) = (BTreeSet::new(), 0);
        let none = [""];
        for protocol in if self.protocols.is_empty() { &none } else { self.protocols } {
            for way in self.ways {
                let (version, count) = self.compare(protocol, way);
                versions.insert(version);
                compared += count;
            }
        }
        assert_eq!(versions.len(), 1, "{versions:?}");
        let version = versions.pop_first().expect("one");
        assert!(version.starts_with(self.version), "{} {version}", self.name);
        let protocols = if self.protocols.contains(&"3") { "RESP2, RESP3" } else { "RESP2" };
        let kinds = if self.ways.iter().any(|way| way.starts_with("async")) { "sync, asyncio; " } else { "" };
        let over = if self.is_remote { "over TCP; " } else { "" };
        let asked = format!("{over}{kinds}alone, pipeline, `MULTI`");
        for way in self.ways.iter().filter(|way| !way.ends_with("alone")) {
            DEPTHS.into_iter().for_each(|depth| self.ask_deep(way, depth));
        }
        format!("| {} | {version} | {protocols} | {asked} | {compared} | {} |", self.name, depths())
    }

    /// Asks so often at once, and has each check charged once and answered in its place.
    fn ask_deep(&self, way: &str, depth: usize) {
        let daemon = self.daemon(DEEP_POLICY);
        let place = format!("{} {way} of {depth}", self.name);
        let input = (hexadecimal("RATION.CHECK|api|deep") + "\n").repeat(depth);
        let protocol = self.protocols.first().copied().unwrap_or_default();
        let said = self.said(&daemon, protocol, way, &input);
        let answers: Vec<_> = said.lines().skip(1).collect();
        assert_eq!(answers.len(), depth, "{place}");
        for (number, answer) in (1..).zip(answers) {
            let wanted = format!("[0 {DEEP_LIMIT} {} -1 ", DEEP_LIMIT - number);
            assert!(answer.starts_with(&wanted), "{place}: the {number}th is answered {answer}");
        }
        assert_charged(&daemon, "deep", depth, &place);
    }

    /// What its driver says to this.
    fn daemon(&self, policy: &str) -> Daemon {
        if !self.is_remote {
            return Daemon::start(policy);
        }
        let users = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(users.path(), USERS).expect("it is ours");
        Daemon::start(&format!("tcp = \"127.0.0.1:0\"\ntcp_users = {:?}\n{policy}", users.path()))
    }

    fn said(&self, daemon: &Daemon, protocol: &str, way: &str, input: &str) -> String {
        let words = [protocol, way].into_iter().filter(|word| !word.is_empty());
        let mut command = Command::new(self.command.get_program());
        command.args(self.command.get_args());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        match self.is_remote {
            true => command.arg(format!("redis://app:secret@{}", daemon.tcp())),
            false => command.arg(daemon.socket()),
        };
        output(command.args(words), input)
    }

    /// The client's version, and how many answers were compared.
    fn compare(&self, protocol: &str, way: &str) -> (String, usize) {
        let (queued, alone) = (way.ends_with("multi"), way.ends_with("alone"));
        let cases = CASES.iter().filter(|(_, answer)| !queued || can_be_queued(answer));
        // Over TCP nobody knows a client any more after its RESET.
        let cases = cases.take_while(|(asked, _)| !(self.is_remote && *asked == "RESET"));
        let cases: Vec<_> = cases
            .filter_map(|(asked, answer)| Some((*asked, if alone { *answer } else { (self.in_batch)(answer)? })))
            .collect();
        let input: String = cases.iter().map(|(asked, _)| hexadecimal(asked) + "\n").collect();
        let daemon = self.daemon(POLICY);
        let said = self.said(&daemon, protocol, way, &input);
        let place = format!("{} {protocol} {way}", self.name);
        let (version, answers) = said.split_once('\n').expect("a version and answers");
        let answers: Vec<_> = answers.lines().collect();
        assert_eq!(answers.len(), cases.len(), "{place}: {answers:#?}");
        for ((asked, wanted), answer) in cases.iter().zip(answers) {
            assert!(fits(wanted, answer.trim_end()), "{place}: {asked}\nanswered: {answer}\n  wanted: {wanted}");
        }
        (version.strip_prefix("version ").expect("a version").to_owned(), cases.len())
    }
}
