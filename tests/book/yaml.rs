//! What the pages show as YAML. Its programs (Ansible, Helm, the Collector) are not here, so each block is read as YAML,
//! and what it says of rationd is compared with the daemon, its commands and the files in deploy/.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rationd::config::{Config, DEFAULT_FILE, Sources, load};
use saphyr_parser::{Event, Parser};

use super::{pages, root};
use crate::support::process::{Daemon, without_settings};
use crate::support::web;

/// The socket of a host's daemon, which deploy/systemd and the pages name.
const SOCKET: &str = "/run/rationd/rationd.sock";

#[derive(Debug)]
enum Node {
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// The documents of a text.
    fn read(text: &str) -> Vec<Self> {
        let mut events = Parser::new_from_str(text).map(|event| event.expect("a page shows YAML").0);
        let mut documents = Vec::new();
        while let Some(event) = events.next() {
            if !matches!(event, Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd) {
                documents.push(Self::of(event, &mut events));
            }
        }
        documents
    }

    fn of<'t>(event: Event<'t>, events: &mut impl Iterator<Item = Event<'t>>) -> Self {
        match event {
            Event::Scalar(text, ..) => Self::Text(text.into_owned()),
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                while let Some(event) = events.next().filter(|event| *event != Event::SequenceEnd) {
                    list.push(Self::of(event, events));
                }
                Self::List(list)
            }
            Event::MappingStart(..) => {
                let mut pairs = Vec::new();
                while let Some(event) = events.next().filter(|event| *event != Event::MappingEnd) {
                    let key = Self::of(event, events);
                    let value = events.next().expect("each key has a value");
                    pairs.push((key, Self::of(value, events)));
                }
                Self::Map(pairs)
            }
            other => panic!("{other:?} is not read here"),
        }
    }

    /// All values of this key, wherever they stand, in their order.
    fn all(&self, name: &str) -> Vec<&Self> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::List(list) => list.iter().flat_map(|node| node.all(name)).collect(),
            Self::Map(pairs) => {
                let is_it = |key: &Self| matches!(key, Self::Text(text) if text == name);
                let of = |(key, value)| Some(value).filter(|_| is_it(key)).into_iter().chain(Self::all(value, name));
                pairs.iter().map(|(key, value)| (key, value)).flat_map(of).collect()
            }
        }
    }

    /// All texts under this key.
    fn texts(&self, name: &str) -> Vec<&str> {
        self.all(name).into_iter().flat_map(Self::each).collect()
    }

    fn each(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(list) => list.iter().flat_map(Self::each).collect(),
            Self::Map(_) => Vec::new(),
        }
    }
}

/// The blocks of YAML on a page.
fn blocks(page: &str) -> Vec<Node> {
    let text = &pages()[page];
    let inner = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    inner.flat_map(|(inner, _)| Node::read(inner)).collect()
}

/// A file of deploy/.
fn deployed(file: &str) -> String {
    fs::read_to_string(root().join("deploy").join(file)).expect("a file of deploy/")
}

/// Runs a command of a page, in which `names` stand for others.
fn run(command: &str, names: &[(&str, &Path)]) -> Output {
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("rationd"), "{command}");
    let words = words.map(|word| {
        names.iter().find(|(name, _)| *name == word).map_or(OsStr::new(word), |(_, path)| path.as_os_str())
    });
    let mut rationd = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut rationd);
    let output = rationd.args(words).output();
    output.unwrap_or_else(|error| panic!("{command}: {error}"))
}

fn assert_runs(command: &str, names: &[(&str, &Path)]) {
    let output = run(command, names);
    assert!(output.status.success(), "{command}: {output:?}");
}

/// The configuration of a text, or of nothing.
fn configuration(text: &str) -> Config {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rationd.toml");
    fs::write(&file, text).expect("a file");
    load(&Sources { file: Some(file), ..Sources::default() }).unwrap_or_else(|errors| panic!("{text}: {errors}")).config
}

/// The default admin address.
fn admin() -> String {
    configuration("").listen.admin.expect("there is one").to_string()
}

#[test]
fn every_block_of_yaml_is_compared_here() {
    let shown = pages().into_iter().map(|(name, text)| (name, text.matches("```yaml\n").count()));
    let shown: Vec<_> = shown.filter(|(_, count)| *count > 0).collect();
    let known = [("docs/operate/ansible.md", 1), ("docs/operate/kubernetes.md", 2), ("docs/operate/monitoring.md", 1)];
    assert_eq!(shown, known.map(|(name, count)| (name.to_owned(), count)), "a test below compares each block");
}

/// The commands of the play are run, in its order and with the codes that it waits for.
#[test]
fn the_play_of_ansible_puts_a_daemon_on_a_host_and_its_policies_in_force() {
    let [play] = &blocks("docs/operate/ansible.md")[..] else { panic!("one play") };
    let directory = tempfile::tempdir().expect("a directory");
    let fleet = directory.path().join("fleet");
    let host = fleet.join("host");
    assert_runs("rationd cert ca --fleet prod --dir fleet", &[("fleet", &fleet)]);
    assert_runs(
        "rationd cert node --fleet prod --name host --ca-dir fleet --dir DIR",
        &[("fleet", &fleet), ("DIR", &host)],
    );
    let files = play.texts("loop").into_iter().map(|file| fleet.join(file.replace("{{ inventory_hostname }}", "host")));
    let files: BTreeSet<_> =
        files.map(|file| fs::canonicalize(&file).expect("the commands of the page make it")).collect();
    for file in files {
        fs::copy(&file, directory.path().join(file.file_name().expect("a name"))).expect("copied");
    }
    let page = pages().remove("docs/operate/ansible.md").expect("a page");
    let [_, template] = &page.split("```toml\n").collect::<Vec<_>>()[..] else { panic!("one") };
    let template = template.split("```").next().unwrap_or_default();
    let filled = template
        .replace("{{ inventory_hostname }}", "host")
        .replace("{{ ansible_default_ipv4.address }}", "10.0.0.1")
        .replace(r#"{{ groups['rationd'][:3] | join(':7946", "') }}"#, r#"10.0.0.1:7946", "10.0.0.2"#)
        .replace("/etc/rationd/", &format!("{}/", directory.path().display()));
    assert!(
        filled.contains(SOCKET) && deployed("systemd/rationd.socket").contains(&format!("ListenStream={SOCKET}\n"))
    );
    let destinations = play.texts("dest");
    assert!(destinations.contains(&DEFAULT_FILE), "{destinations:?}");
    assert!(destinations.contains(&"/etc/rationd/policies.d/policies.toml"), "{destinations:?}");
    let policies = directory.path().join("policies.toml");
    fs::write(&policies, "[policy.web]\nlimits = [\"5/1s\"]\n").expect("a file");
    let main = directory.path().join("rationd.toml");
    fs::write(&main, filled).expect("a file");
    let [of_main, of_policies] = play.texts("validate")[..] else { panic!("two files are validated") };
    assert_runs(of_main, &[("%s", &main)]);
    assert_runs(of_policies, &[("%s", &policies)]);

    let daemon = Daemon::start("");
    let [ready] = play.texts("url")[..] else { panic!("one address") };
    assert_eq!(ready, format!("http://{}/readyz", admin()));
    let answer = web::ask(daemon.admin().port(), "/readyz", "").expect("an answer");
    assert_eq!(answer.status, 200);
    let below = daemon.directory().join("policies.d");
    fs::create_dir(&below).expect("a directory");
    fs::copy(&policies, below.join("policies.toml")).expect("copied");
    let [diff, reload] = play.texts("ansible.builtin.command")[..] else { panic!("two commands") };
    let (socket, config) = (daemon.socket(), daemon.config());
    // On a host the configuration is where the program looks for it.
    let named = |command: &str| command.replacen("rationd ", "rationd --config FILE ", 1);
    let names: [(&str, &Path); 2] = [(SOCKET, &socket), ("FILE", &config)];
    let differs = || run(&named(diff), &names).status.code();
    assert_eq!(play.texts("changed_when"), ["difference.rc == 1"]);
    assert_eq!(play.texts("failed_when"), ["difference.rc > 1"]);
    assert_eq!(differs(), Some(1));
    assert_runs(reload, &names);
    assert_eq!(differs(), Some(0));
    let service: Vec<_> = play.all("ansible.builtin.service").iter().flat_map(|node| node.texts("name")).collect();
    assert_eq!(service, ["rationd.service"], "it is the one of deploy/systemd");
}

#[test]
fn the_collector_scrapes_the_default_address() {
    let [collector] = &blocks("docs/operate/monitoring.md")[..] else { panic!("one configuration") };
    assert_eq!(collector.texts("targets"), [admin()]);
    let [prometheus] = &Node::read(&deployed("prometheus/prometheus.yml"))[..] else { panic!("one document") };
    for key in ["job_name", "targets", "scrape_interval"] {
        assert!(prometheus.texts(key).iter().any(|text| collector.texts(key).contains(text)), "{key}");
    }
}

#[test]
fn an_application_in_kubernetes_mounts_what_the_daemon_set_has() {
    let [values, application] = &blocks("docs/operate/kubernetes.md")[..] else { panic!("two blocks") };
    let [defaults] = &Node::read(&deployed("helm/rationd/values.yaml"))[..] else { panic!("one document") };
    for key in ["image", "repository", "config"] {
        assert_eq!((values.all(key).len(), defaults.all(key).len()), (1, 1), "{key}");
    }
    let [config] = values.texts("config")[..] else { panic!("a text") };
    assert!(configuration(config).store.url.starts_with("redis-cluster://"), "{config}");
    let ours = Node::read(&deployed("kubernetes/rationd.yaml"));
    let of_ours = |key: &str| ours.iter().flat_map(|node| node.texts(key)).map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(application.texts("supplementalGroups"), defaults.all("socket")[0].texts("group"));
    for (key, ours) in [("mountPath", "mountPath"), ("path", "path"), ("supplementalGroups", "supplementalGroups")] {
        for text in application.texts(key) {
            assert!(of_ours(ours).contains(text), "{key}: {text}");
        }
    }
    let [directory] = application.texts("mountPath")[..] else { panic!("one directory") };
    assert_eq!(Path::new(SOCKET).parent(), Some(Path::new(directory)));
    let [written] = &of_ours("rationd.toml").into_iter().collect::<Vec<_>>()[..] else { panic!("one configuration") };
    assert!(
        written.contains(&format!("socket = \"{SOCKET}\"\n")) && written.contains("mode = \"0660\"\n"),
        "{written}"
    );
}
