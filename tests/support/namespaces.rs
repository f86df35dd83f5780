//! A small network of namespaces on one bridge, whose ports real cuts part from each other.
//!
//! The test runs itself again in network, mount and process namespaces of its own (`unshare`), where it is
//! the hub: the bridge is there, and each place is one more namespace with a cable (veth) to it. What `ip
//! netns` names lies on a mount that no other run sees, and the kernel takes all of it away when that
//! process ends, however it does: nothing can be left behind, nor meet the names of a parallel run.
//!
//! Cuts are nftables rules on what the bridge forwards. The hub's own packets are not forwarded, so the
//! test reaches everybody at all times.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::server::Place;
use super::skip::skipped;

/// Namespaces of its own for a process and for what it starts, which end with it.
const UNSHARE: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// Set where the test runs inside.
const INSIDE: &str = "RATIOND_NAMESPACES_INSIDE";
/// Whether all that is needed is there and allowed.
const PROBE: &str = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add probe \
     && ip netns exec probe true && ip link add probe type bridge && nft add table bridge probe";
/// Runs the words behind it inside.
const ENTER: &str = "mount -t tmpfs none /run/netns && exec \"$@\"";
/// Where the places are: nobody outside sees these addresses.
const NET: &str = "10.77.0";

/// Runs `body` with a network, as the test called `test`; says so and does nothing where that cannot be.
///
/// # Panics
/// When `body` does.
pub fn within(test: &str, body: impl FnOnce(Network)) {
    if std::env::var_os(INSIDE).is_some() {
        return body(Network::new());
    }
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(UNSHARE).args(["sh", "-c"]).args(words).stdin(Stdio::null());
        command
    };
    if let Err(why) = output(&mut unshare(&[PROBE])) {
        return skipped(test, &format!("no network namespaces here: {why}"), "root unshare ip nft namespaces");
    }
    let own = std::env::current_exe().expect("its path");
    let own = own.to_str().expect("a path in UTF-8");
    let listed = output(Command::new(own).args(["--exact", test, "--list"])).expect("it ran a moment ago");
    assert!(listed.contains(": test"), "there is no test called {test} that could run inside: {listed}");
    let mut inside = unshare(&[ENTER, "sh", own, "--exact", test, "--nocapture"]);
    let status = inside.env(INSIDE, "1").status().expect("unshare was there a moment ago");
    assert!(status.success(), "inside the namespaces: {status}");
}

/// A bridge with places around it.
pub struct Network {
    places: usize,
}

impl Network {
    fn new() -> Self {
        ip(&format!("link set lo up\nlink add hub type bridge\naddr add {NET}.254/24 dev hub\nlink set hub up\n"));
        Self { places: 0 }
    }

    /// A namespace with a cable to the bridge; the name is its port's too: 15 bytes at most.
    pub fn place(&mut self, name: &str) -> Place {
        self.places += 1;
        let host = format!("{NET}.{}", self.places);
        ip(&format!(
            "netns add {name}\nlink add {name} type veth peer name eth0 netns {name}\nlink set {name} master hub up\n"
        ));
        let inside = format!("link set lo up\naddr add {host}/24 dev eth0\nlink set eth0 up\n");
        fed(Command::new("ip").args(["-n", name, "-batch", "-"]), &inside);
        let way = ["ip", "netns", "exec", name].map(str::to_owned).into();
        Place { way, host }
    }

    /// Lets nothing pass any more between places on different sides, and anything else, in both directions.
    pub fn cut(&self, sides: [&[String]; 2]) {
        let ports = |side: &[String]| side.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let [one, other] = sides.map(ports);
        self.heal();
        fed(
            Command::new("nft").args(["-f", "-"]),
            &format!(
                "table bridge cut {{\n chain forward {{\n  type filter hook forward priority 0; policy accept;\n  \
                 iifname {{ {one} }} oifname {{ {other} }} counter drop\n  \
                 iifname {{ {other} }} oifname {{ {one} }} counter drop\n }}\n}}\n"
            ),
        );
    }

    /// Ends a cut, if there is one; returns how many packets it took.
    pub fn heal(&self) -> u64 {
        let rules = fed(Command::new("nft").args(["list", "ruleset"]), "");
        let counts =
            rules.split("counter packets ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let taken = counts.sum::<u64>();
        fed(Command::new("nft").args(["flush", "ruleset"]), "");
        taken
    }
}

fn ip(batch: &str) {
    fed(Command::new("ip").args(["-batch", "-"]), batch);
}

/// What a command prints that must succeed, given this to read.
fn fed(command: &mut Command, input: &str) -> String {
    let text = format!("{command:?}: {input}");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect(&text);
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect(&text);
    let printed = child.wait_with_output().map_err(|error| error.to_string()).and_then(judged);
    printed.unwrap_or_else(|why| panic!("{text}: {why}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    command.output().map_err(|error| error.to_string()).and_then(judged)
}

fn judged(output: Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr).replace('\n', "; ")) }
}
