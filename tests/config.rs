//! The configuration: which layer wins, what every error says and where it points, and that nothing
//! malformed ever panics or is taken in part.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rationd::config::{ListenAddress, Loaded, Override, SAMPLE, Sources, load};
use rationd::core::policy::Plan;
use rationd::serve::reload::{REFUSED, Reloader};
use rationd::serve::tcp::RemoteAccess;
use tempfile::TempDir;

/// A directory with a main file and, below it, policies.
struct Files(TempDir);

impl Files {
    fn new(main: &str) -> Self {
        let files = Self(tempfile::tempdir().expect("a temporary directory"));
        fs::write(files.main(), main).expect("a file");
        files
    }

    fn with_policies(self, name: &str, text: &str) -> Self {
        let directory = self.0.path().join("policies.d");
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(name), text).expect("a file");
        self
    }

    fn main(&self) -> PathBuf {
        self.0.path().join("rationd.toml")
    }

    fn sources(&self) -> Sources {
        Sources { file: Some(self.main()), ..Sources::default() }
    }

    fn load(&self) -> Loaded {
        load(&self.sources()).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The errors, with the directory cut out of their paths.
    fn errors(&self) -> String {
        let errors = load(&self.sources()).map(|_| ()).expect_err("something is wrong with it");
        errors.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn variables(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    list.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn origin_of(loaded: &Loaded, key: &str) -> String {
    let entry = loaded.entries().into_iter().find(|entry| entry.key == key).unwrap_or_else(|| panic!("no key {key}"));
    entry.origin.clone()
}

fn error_of(text: &str) -> String {
    Files::new(text).errors()
}

#[test]
fn later_layers_win_and_say_where_a_value_came_from() {
    let files = Files::new("[store]\nurl = \"redis://file:1\"\ntimeout = \"20ms\"\nprefix = \"file\"\n");
    let sources = Sources {
        environment: variables(&[("RATIOND_STORE__URL", "redis://variable:1"), ("RATIOND_STORE__TIMEOUT", "30ms")]),
        flags: vec![Override { origin: "--store".into(), key: "store.url", text: "redis://flag:1".into() }],
        ..files.sources()
    };
    let loaded = load(&sources).expect("nothing is wrong");
    let store = &loaded.config.store;
    assert_eq!((store.url.as_str(), store.timeout.0, store.prefix.as_str()), ("redis://flag:1", 30_000, "file"));
    assert_eq!(origin_of(&loaded, "store.url"), "--store");
    assert_eq!(origin_of(&loaded, "store.timeout"), "RATIOND_STORE__TIMEOUT");
    assert_eq!(origin_of(&loaded, "store.prefix"), format!("{}:4", files.main().display()));
    assert_eq!(origin_of(&loaded, "store.confirm"), "default");
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let file = PathBuf::from("/nonexistent/rationd.toml");
    let errors = load(&Sources { file: Some(file), ..Sources::default() }).map(|_| ()).expect_err("it is missing");
    let text = errors.to_string();
    assert!(text.starts_with("/nonexistent/rationd.toml: cannot be read: No such file"), "{text}");
}

#[test]
fn the_sample_file_equals_the_built_in_defaults() {
    let sample = Files::new(SAMPLE).load();
    let built_in = Files::new("[policy.api]\nlimits = [\"100/1s burst 200\"]\n").load();
    assert_eq!(sample.config, built_in.config);
    for entry in sample.entries() {
        let word = entry.key.rsplit('.').next().expect("a key has a last part");
        let named = SAMPLE.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{word} = ")));
        assert!(named, "{} is not in the sample file", entry.key);
    }
}

#[test]
fn the_example_policies_are_right() {
    let text = include_str!("../config/policies.d/example.toml");
    let loaded = Files::new("").with_policies("example.toml", text).load();
    let plan = loaded.policies.get("plan").expect("the example has it");
    assert_eq!(plan.plan(b"acct:abuser"), &Plan::Blocked);
    assert_eq!(plan.plan(b"acct:internal"), &Plan::Unlimited);
    assert!(matches!(plan.plan(b"somebody"), Plan::Limited(rule) if rule.limits.len() == 3));
}

#[test]
fn a_file_without_policies_gets_no_sample_policy() {
    assert_eq!(Files::new("").load().policies.iter().count(), 0);
}

#[test]
fn policies_can_come_from_the_environment() {
    let sources = Sources {
        environment: variables(&[
            ("RATIOND_POLICY__WEB__LIMITS", "[\"10/1s burst 20\", \"100/1h fixed\"]"),
            ("RATIOND_SERVICE_HOST", "10.0.0.1"),
        ]),
        ..Files::new("").sources()
    };
    let files = Files::new("");
    let loaded = load(&Sources { file: Some(files.main()), ..sources }).expect("nothing is wrong");
    let web = loaded.policies.get("web").expect("it was set");
    assert!(matches!(web.plan(b"x"), Plan::Limited(rule) if rule.limits.len() == 2));
}

#[test]
fn errors_in_variables_and_flags_name_them() {
    let files = Files::new("");
    let sources = Sources {
        environment: variables(&[
            ("RATIOND_STROE__URL", "memory:"),
            ("RATIOND_STORE__TIMEOTU", "1s"),
            ("RATIOND_LISTEN__THREADS", "many"),
            ("RATIOND_DESCRIPTORS__X", "prod"),
            ("RATIOND_A__B__C__D", "1"),
        ]),
        flags: vec![Override { origin: "--admin".into(), key: "listen.admin", text: "nine".into() }],
        ..files.sources()
    };
    let errors = load(&sources).map(|_| ()).expect_err("all of them are wrong").to_string();
    assert_eq!(
        errors,
        "RATIOND_STROE__URL: unknown section `stroe` (did you mean `store`?)\n\
         RATIOND_STORE__TIMEOTU: unknown key `timeotu` in [store] (did you mean `timeout`?)\n\
         RATIOND_LISTEN__THREADS: listen.threads is \"many\": a whole number from 0 to 1024 was wanted\n\
         RATIOND_DESCRIPTORS__X: [descriptors] can be set in the main file only\n\
         RATIOND_A__B__C__D: names no key: RATIOND_SECTION__KEY was wanted\n\
         --admin: listen.admin is \"nine\": an IP address with a port, like \"127.0.0.1:9464\", or \"off\" was wanted"
    );
}

#[test]
fn a_variable_that_means_nothing_is_an_error() {
    let files = Files::new("");
    let environment = variables(&[
        ("RATIOND_STORE_URL", "redis://10.0.0.1:6379"),
        ("RATIOND_POLICY_WEB_LIMITS", "10/1s"),
        ("RATIOND_LGO", "debug"),
        ("RATIOND_LOG", "debug"),
        ("RATIOND_PORT", "9464"),
        ("RATIOND_BLUE", "1"),
    ]);
    let sources = Sources { environment, variables: vec!["RATIOND_LOG".into()], ..files.sources() };
    let errors = load(&sources).map(|_| ()).expect_err("most of them mean nothing").to_string();
    assert_eq!(
        errors,
        "RATIOND_STORE_URL: no such variable (did you mean `RATIOND_STORE__URL`?)\n\
         RATIOND_POLICY_WEB_LIMITS: no such variable (did you mean `RATIOND_POLICY__WEB__LIMITS`?)\n\
         RATIOND_LGO: no such variable (did you mean `RATIOND_LOG`?)\n\
         RATIOND_PORT: no such variable\n\
         RATIOND_BLUE: no such variable"
    );
}

/// Kubernetes tells every container of a namespace where its services are; one of them may be called like this.
#[test]
fn variables_of_a_platform_are_left_alone() {
    let files = Files::new("");
    let environment = variables(&[
        ("RATIOND_SERVICE_HOST", "10.0.0.1"),
        ("RATIOND_SERVICE_PORT", "9464"),
        ("RATIOND_SERVICE_PORT_METRICS", "9464"),
        ("RATIOND_PORT", "tcp://10.0.0.1:9464"),
        ("RATIOND_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
        ("RATIOND_PORT_9464_TCP_PROTO", "tcp"),
        ("RATIOND_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("RATIOND_ADMIN_SERVICE_HOST", "10.0.0.1"),
        ("RATIOND_ADMIN_PORT_80_UDP_PORT", "80"),
    ]);
    load(&Sources { environment, ..files.sources() }).unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn overrides_with_a_star_stand_for_many_keys() {
    let text = "[policy.api]\nlimits = [\"10/1s\"]\n[policy.api.override.\"plan:pro:*\"]\nlimits = [\"50/1s\"]\n\
                [policy.api.override.\"plan:*\"]\nlimits = [\"20/1s\"]\n[policy.api.override.\"*:off\"]\nblocked = true\n\
                [policy.api.override.\"plan:pro:acme\"]\nunlimited = true\n[policy.api.override.'a\\*']\nblocked = true\n";
    let loaded = Files::new(text).load();
    let api = loaded.policies.get("api").expect("it is there");
    let count = |key: &str| match api.plan(key.as_bytes()) {
        Plan::Limited(rule) => rule.limits[0].count,
        Plan::Unlimited => u64::MAX,
        Plan::Blocked => 0,
    };
    let keys = ["plan:pro:x", "plan:pro:acme", "plan:team", "user:off", "user", "a*", "ab"];
    assert_eq!(keys.map(count), [50, u64::MAX, 20, 0, 10, 0, 10]);
    let shown = loaded.entries().into_iter().find(|entry| entry.key == "policy.api.override.\"plan:pro:*\".limits");
    assert_eq!(shown.and_then(|entry| entry.value), Some("[\"50/1s\"]".to_owned()));
}

#[test]
fn a_star_elsewhere_is_pointed_at() {
    assert_eq!(
        error_of("[policy.api]\nunlimited = true\n[policy.api.override.\"a*b\"]\nblocked = true\n"),
        "rationd.toml:3:22: policy \"api\", override \"a*b\": one `*` at the beginning or at the end was wanted; \
         a star of the key itself is `\\*`\n  \
           3 | [policy.api.override.\"a*b\"]\n    \
             |                      ^^^^^"
    );
    let seen = error_of("[policy.api]\nunlimited = true\n[policy.api.override.\"*\"]\nblocked = true\n");
    assert!(seen.contains("`*` alone is every key: give the policy itself these limits"), "{seen}");
    let seen = error_of(
        "[policy.api]\nunlimited = true\n[policy.api.override.'a\\\\b']\nblocked = true\n\
         [policy.api.override.'a\\b']\nunlimited = true\n",
    );
    assert!(seen.contains("means the same as override"), "{seen}");
}

/// The sample policy is gone as soon as there is a configuration, and with it what the examples ask about.
#[test]
fn examples_say_which_policy_they_ask_about() {
    let mut asked = 0;
    let mut places = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")];
    while let Some(place) = places.pop() {
        if place.is_dir() {
            places.extend(fs::read_dir(&place).expect("a directory").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = fs::read_to_string(&place).expect("a text");
        if !["policy=api", "\"api\"", "'api'", "rationd.sock api"].iter().any(|word| text.contains(word)) {
            continue;
        }
        asked += 1;
        let wanted = "[policy.api]";
        let (_, rest) = text.split_once(wanted).unwrap_or_else(|| panic!("{} does not say it", place.display()));
        let words: String =
            rest.lines().take(2).flat_map(|line| line.split_once("limits = ")).map(|(_, end)| end).collect();
        let limits = words.split_once(']').map(|(limits, _)| format!("{limits}]")).expect("a list");
        assert_eq!(Files::new(&format!("{wanted}\nlimits = {limits}\n")).load().policies.iter().count(), 1);
    }
    assert!(asked >= 9, "{asked} examples were found");
}

#[test]
fn unknown_keys_and_sections_are_pointed_at() {
    assert_eq!(
        error_of("[listen]\nsokcet = \"/tmp/x\"\n\n[stor]\nurl = \"memory:\"\n"),
        "rationd.toml:2:1: unknown key `sokcet` in [listen]\n  \
           2 | sokcet = \"/tmp/x\"\n    \
             | ^^^^^^ did you mean `socket`?\n\
         rationd.toml:4:2: unknown section `stor`\n  \
           4 | [stor]\n    \
             |  ^^^^ did you mean `store`?"
    );
}

#[test]
fn a_key_in_the_wrong_section_is_told_its_own() {
    assert_eq!(
        error_of("[node]\n\tprefix = \"x\"\n"),
        "rationd.toml:2:2: unknown key `prefix` in [node]\n  \
           2 | \tprefix = \"x\"\n    \
             | \t^^^^^^ it belongs in [store]"
    );
}

#[test]
fn wrong_values_say_what_was_seen_and_what_was_wanted() {
    for (text, wanted) in [
        (
            "[store]\ntimeout = 50",
            "2:11: store.timeout is 50: a period from 1ms to 5s, like 50ms, was wanted\n  \
             2 | timeout = 50\n    |           ^^ did you mean \"50ms\"?",
        ),
        (
            "[store]\nconfirm = \"yes\"",
            "2:11: store.confirm is \"yes\": \"auto\" or \"on\" or \"off\" was wanted\n  \
             2 | confirm = \"yes\"\n    |           ^^^^^",
        ),
        (
            "[store]\nurl = \"reds://u:secret@h:1\"",
            "2:7: store.url is \"reds://u:***@h:1\": memory: or one of redis:// rediss:// redis+unix:// \
             redis-cluster:// rediss-cluster:// was wanted\n  \
             2 | url = \"reds://u:***@h:1\"\n    |       ^^^^^^^^^^^^^^^^^^ did you mean `redis`?",
        ),
        (
            "[listen]\nmode = 660",
            "2:8: listen.mode is 660: permissions in octal, like \"0660\", was wanted\n  \
             2 | mode = 660\n    |        ^^^ write it in quotes",
        ),
        (
            "[listen]\nmax_connections = \"5\"",
            "2:19: listen.max_connections is \"5\": a whole number from 1 to 1000000 was wanted\n  \
             2 | max_connections = \"5\"\n    |                   ^^^ write it without quotes",
        ),
        (
            "[node]\nmax_memory = \"512\"",
            "2:14: node.max_memory is \"512\": a size from 32MiB to 1024TiB, like 512MiB, was wanted\n  \
             2 | max_memory = \"512\"\n    |              ^^^^^ did you mean `512MiB`?",
        ),
        (
            "[listen]\nallow_uids = [1, \"root\"]",
            "2:18: listen.allow_uids holds \"root\": a whole number from 0 to 4294967295 was wanted\n  \
             2 | allow_uids = [1, \"root\"]\n    |                  ^^^^^^",
        ),
        ("listen = 3", "1:10: listen is an integer: a table was wanted\n  1 | listen = 3\n    |          ^"),
    ] {
        let seen = error_of(text);
        let seen = seen.strip_prefix("rationd.toml:").expect("it names the file");
        assert_eq!(seen, wanted, "{text}");
    }
}

#[test]
fn sizes_are_written_with_their_unit_or_in_bytes() {
    for (text, bytes, shown) in [
        ("\"512MiB\"", 512 << 20, "\"512MiB\""),
        ("\"1024 MiB\"", 1 << 30, "\"1GiB\""),
        ("1073741824", 1 << 30, "\"1GiB\""),
        ("\"33000KiB\"", 33_000 << 10, "\"33000KiB\""),
    ] {
        let loaded = Files::new(&format!("[node]\nmax_memory = {text}\n")).load();
        assert_eq!(loaded.config.node.max_memory, Some(bytes), "{text}");
        let entry = loaded.entries().into_iter().find(|entry| entry.key == "node.max_memory").expect("it is there");
        assert_eq!(entry.value.as_deref(), Some(shown), "{text}");
    }
}

#[test]
fn routes_lead_to_policies_and_are_shown() {
    let text = "[policy.api]\nlimits = [\"1/1s\"]\n[[descriptors.edge]]\nmatch = [\"a=x\", \"...\"]\n\n\
                [[descriptors.edge]]\nmatch = [\"a\"]\npolicy = \"api\"\n";
    let loaded = Files::new(text).load();
    let domain = loaded.policies.routes().domain("edge").expect("it is there");
    assert_eq!(domain.find(&[("a", "y")]).and_then(|route| route.policy.as_deref()), Some("api"));
    assert_eq!(domain.find(&[("a", "x")]).map(|route| route.policy.is_none()), Some(true));
    let shown = loaded.entries().into_iter().find(|entry| entry.key == "descriptors.edge.1").expect("it is shown");
    assert_eq!(shown.value.as_deref(), Some("{ match = [\"a\"], policy = \"api\" }"));
    assert!(shown.origin.ends_with("rationd.toml:6"), "{}", shown.origin);
}

#[test]
fn wrong_routes_are_pointed_at() {
    for (text, wanted) in [
        (
            r#"[descriptors]
edge = 3
"#,
            r#"rationd.toml:2:1: descriptors.edge is no list of tables
  2 | edge = 3
    | ^^^^ write [[descriptors.edge]] above each route"#,
        ),
        (
            r#"[[descriptors.edge]]
match = "a"
polcy = "api"
"#,
            r#"rationd.toml:2:9: descriptors.edge.0.match is "a": a list of texts, like ["remote_address"], was wanted
  2 | match = "a"
    |         ^^^ write it in brackets
rationd.toml:3:1: unknown key `polcy` in [[descriptors.edge]]
  3 | polcy = "api"
    | ^^^^^ did you mean `policy`?"#,
        ),
        (
            r#"[policy.api]
limits = ["1/1s"]
[[descriptors.edge]]
match = ["a"]
policy = "apy"
[[descriptors.edge]]
match = ["a", "=b"]
[[descriptors.edge]]
policy = "api"
"#,
            r#"rationd.toml:5:10: descriptors.edge.0: there is no policy "apy"
  5 | policy = "apy"
    |          ^^^^^
rationd.toml:7:15: descriptors.edge.1: "=b" has no key: key, key=value or key=prefix* was wanted
  7 | match = ["a", "=b"]
    |               ^^^^
rationd.toml:8:1: descriptors.edge.2: `match` is empty: one pattern for each entry was wanted
  8 | [[descriptors.edge]]
    | ^^^^^^^^^^^^^^^^^^^^"#,
        ),
        (
            r#"[listen]
envoy = "rls.sock"
"#,
            r#"rationd.toml:2:9: listen.envoy is "rls.sock": a path of a socket, like "/run/rationd/rls.sock", an IP address with a port, or "off" was wanted
  2 | envoy = "rls.sock"
    |         ^^^^^^^^^^ did you mean `./rls.sock`?"#,
        ),
    ] {
        assert_eq!(error_of(text), wanted);
    }
}

#[test]
fn envoys_door_is_a_path_or_an_address() {
    let door = |text: &str| Files::new(&format!("[listen]\nenvoy = {text:?}\n")).load().config.listen.envoy;
    assert_eq!(door("off"), None);
    assert_eq!(door("127.0.0.1:8081"), Some(ListenAddress::Address(([127, 0, 0, 1], 8081).into())));
    assert_eq!(door("/run/rls.sock"), Some(ListenAddress::Path("/run/rls.sock".into())));
    assert!(matches!(door("./rls.sock"), Some(ListenAddress::Path(path)) if path.is_absolute()), "meant from the file");
}

const FLEET: &str =
    "[fleet]\nname = \"prod\"\nlisten = \"0.0.0.0:7946\"\nca = \"ca.pem\"\ncert = \"node.pem\"\nkey = \"node.key\"\n";

#[test]
fn without_a_fleet_section_a_node_is_alone() {
    let loaded = Files::new("").load();
    assert_eq!(loaded.config.fleet, None);
    let tick = loaded.entries().into_iter().find(|entry| entry.key == "fleet.tick").expect("it is shown");
    assert_eq!((tick.value.as_deref(), tick.origin.as_str()), (None, "default"));
}

#[test]
fn a_fleet_gets_its_defaults_when_it_is_set() {
    let files = Files::new(FLEET);
    let loaded = files.load();
    let fleet = loaded.config.fleet.as_ref().expect("it is set");
    assert_eq!((fleet.name.as_str(), fleet.listen.to_string().as_str()), ("prod", "0.0.0.0:7946"));
    assert_eq!((fleet.advertise, fleet.seeds.len(), fleet.tick.0), (None, 0, 200_000));
    assert_eq!(fleet.key, files.0.path().join("node.key"));
    let tick = loaded.entries().into_iter().find(|entry| entry.key == "fleet.tick").expect("it is shown");
    assert_eq!((tick.value.as_deref(), tick.origin.as_str()), (Some("\"200ms\""), "default"));
}

#[test]
fn a_fleet_can_be_set_by_variables() {
    let files = Files::new(FLEET);
    let environment = variables(&[
        ("RATIOND_FLEET__SEEDS", "[10.0.0.1:7946, rationd.internal:7946, [::1]:7946]"),
        ("RATIOND_FLEET__ADVERTISE", "10.0.0.17:7946"),
        ("RATIOND_FLEET__TICK", "1s"),
    ]);
    let loaded = load(&Sources { environment, ..files.sources() }).expect("nothing is wrong");
    let fleet = loaded.config.fleet.as_ref().expect("it is set");
    assert_eq!(fleet.seeds, ["10.0.0.1:7946", "rationd.internal:7946", "[::1]:7946"]);
    assert_eq!((fleet.advertise.map(|address| address.port()), fleet.tick.0), (Some(7946), 1_000_000));
    assert_eq!(origin_of(&loaded, "fleet.seeds"), "RATIOND_FLEET__SEEDS");
    let seeds =
        loaded.entries().into_iter().find(|entry| entry.key == "fleet.seeds").and_then(|entry| entry.value.clone());
    assert_eq!(seeds.as_deref(), Some("[\"10.0.0.1:7946\", \"rationd.internal:7946\", \"[::1]:7946\"]"));
}

#[test]
fn a_fleet_says_what_it_needs_and_how_to_get_it() {
    assert_eq!(
        error_of("[fleet]\nlisten = \"here\"\nca = \"ca.pem\"\n[policy.a]\nlimits = [\"0/1s\"]\n"),
        "rationd.toml:1:2: fleet.name is not set: a fleet cannot be joined without it\n  \
           1 | [fleet]\n    \
             |  ^^^^^ name the fleet, like name = \"prod\"\n\
         rationd.toml:1:2: fleet.cert is not set: a fleet cannot be joined without it\n  \
           1 | [fleet]\n    \
             |  ^^^^^ `rationd cert node` makes it\n\
         rationd.toml:1:2: fleet.key is not set: a fleet cannot be joined without it\n  \
           1 | [fleet]\n    \
             |  ^^^^^ `rationd cert node` makes it\n\
         rationd.toml:2:10: fleet.listen is \"here\": an IP address with a port, like \"0.0.0.0:7946\", was wanted\n  \
           2 | listen = \"here\"\n    \
             |          ^^^^^^\n\
         rationd.toml:5:11: policy \"a\", limit 1: count is 0: it must be 1 to 9007199254740991 (2^53 - 1)\n  \
           5 | limits = [\"0/1s\"]\n    \
             |           ^^^^^^"
    );
}

#[test]
fn wrong_values_of_a_fleet_are_pointed_at() {
    for (line, wanted) in [
        ("name = \"Prod\"", "fleet.name is \"Prod\": 1 to 63 lower-case letters, digits and inner hyphens"),
        (
            "advertise = \"0.0.0.0:1\"",
            "fleet.advertise is \"0.0.0.0:1\": an IP address with a port that peers can reach",
        ),
        ("seeds = [\"10.0.0.1\"]", "fleet.seeds holds \"10.0.0.1\": a host and a port in quotes"),
        ("seeds = \"10.0.0.1:1\"", "fleet.seeds is \"10.0.0.1:1\": a list of hosts and ports"),
        ("tick = \"10ms\"", "fleet.tick is \"10ms\": a period from 50ms to 5s"),
    ] {
        let key = line.split(' ').next().expect("a key");
        let others: Vec<_> = FLEET.lines().filter(|other| !other.starts_with(&format!("{key} "))).collect();
        let seen = error_of(&format!("{}\n{line}\n", others.join("\n")));
        assert!(seen.contains(wanted), "{seen}");
        assert_eq!(seen.matches("rationd.toml:").count(), 1, "{seen}");
    }
}

#[test]
fn errors_of_policies_point_at_the_limit() {
    assert_eq!(
        error_of("[policy.api]\nlimits = [\n  \"100/1s\",\n  \"10/1y\", # a year\n]\n"),
        "rationd.toml:4:3: policy \"api\", limit 2: \"1y\" where a period, like 250ms, 10s, 1m, 24h or 7d, was wanted\n  \
           4 |   \"10/1y\", # a year\n    \
             |   ^^^^^^^"
    );
    assert_eq!(
        error_of("[policy.api]\nunlimited = true\n[policy.api.override.\"a b\"]\nlimits = [\"0/1s\"]\n"),
        "rationd.toml:4:11: policy \"api\", override \"a b\", limit 1: count is 0: it must be 1 to 9007199254740991 (2^53 - 1)\n  \
           4 | limits = [\"0/1s\"]\n    \
             |           ^^^^^^"
    );
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "[store]\nurl = 5\nbogus = 1\n[policy.a]\nlimits = [\"1/1s\", 7]\nshadow = \"no\"\n[policy.b]\n";
    let seen = error_of(text);
    let places: Vec<_> = seen.lines().filter(|line| line.starts_with("rationd.toml:")).collect();
    assert_eq!(places.len(), 5, "{seen}");
}

#[test]
fn a_policy_defined_twice_names_both_places() {
    let files = Files::new("[policy.api]\nlimits = [\"1/1s\"]\n")
        .with_policies("a.toml", "[policy.other]\nlimits = [\"1/1s\"]\n")
        .with_policies("b.toml", "\n[policy.api]\nlimits = [\"2/1s\"]\n");
    assert_eq!(
        files.errors(),
        "policies.d/b.toml:2:9: policy \"api\" is defined twice: here and at rationd.toml:1:9\n  \
           2 | [policy.api]\n    \
             |         ^^^ rename or remove one of them"
    );
}

#[test]
fn files_in_policies_d_hold_policies_only() {
    let files = Files::new("").with_policies("a.toml", "[store]\nurl = \"memory:\"\n");
    assert_eq!(
        files.errors(),
        "policies.d/a.toml:1:2: `store` has no place in this file\n  \
           1 | [store]\n    \
             |  ^^^^^ files in policies.d hold [policy.NAME] only; move [store] to the main file"
    );
}

#[test]
fn syntax_errors_point_at_the_line() {
    let seen = error_of("[store]\nurl = \"memory:\n");
    assert!(seen.starts_with("rationd.toml:2:"), "{seen}");
    assert!(seen.contains("  2 | url = \"memory:\n"), "{seen}");
    let bytes = Files::new("");
    fs::write(bytes.main(), b"[store]\nurl = \"\xff\"\n").expect("a file");
    assert!(bytes.errors().starts_with("rationd.toml:2:8: not UTF-8"), "{}", bytes.errors());
}

#[test]
fn settings_that_need_each_other_are_checked_together() {
    let seen = error_of("[store]\nurl = \"rediss://h:1\"\ncert = \"a.pem\"\n");
    assert!(seen.starts_with("rationd.toml:3:8: store.cert without store.key"), "{seen}");
    let seen = error_of("[store]\nurl = \"redis://h:1\"\nca = \"a.pem\"\n");
    assert!(seen.starts_with("rationd.toml:3:6: store.ca is set, but store.url has no TLS"), "{seen}");
}

#[test]
fn paths_in_a_file_are_meant_from_its_directory() {
    let files = Files::new("[store]\nurl = \"rediss://h:1\"\nca = \"ca.pem\"\n");
    let ca = files.load().config.store.ca.expect("it was set");
    assert_eq!(ca, files.0.path().join("ca.pem"));
    assert!(Path::new(&ca).is_absolute());
}

#[test]
fn shown_values_hide_passwords() {
    let loaded = Files::new("[store]\nurl = \"redis://u:secret@h:1\"\n").load();
    let shown: Vec<_> = loaded.entries().iter().filter_map(|entry| entry.value.clone()).collect();
    assert!(shown.contains(&"\"redis://u:***@h:1\"".to_owned()), "{shown:?}");
}

/// A thousand damaged copies of a whole configuration are reloaded: each is refused with a reason and
/// changes nothing, or is taken whole.
#[test]
fn a_thousand_mutated_configurations_are_taken_whole_or_not_at_all() {
    let whole = format!("{SAMPLE}\n{}", include_str!("../config/policies.d/example.toml"));
    let files = Files::new(&whole);
    let reloader = Reloader::new(files.sources(), files.load(), RemoteAccess::default());
    let mut random = Random(0x5eed);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..1_000 {
        fs::write(files.main(), mutate(whole.as_bytes(), &mut random)).expect("a file");
        let before = reloader.policies().load_full();
        match reloader.reload() {
            Ok(_) => {
                let fresh = files.load();
                assert_eq!(**reloader.policies().load(), fresh.policies, "taken whole");
                assert_eq!(fresh.policies.iter().count(), fresh.config.policy_specs().len(), "taken whole");
                taken += 1;
            }
            Err(reason) => {
                assert!(Arc::ptr_eq(&before, &reloader.policies().load_full()), "refused, but something changed");
                assert!(reason.len() > REFUSED.len() && !reason.contains('\n'), "{reason:?}");
                refused += 1;
            }
        }
        assert_eq!(reloader.generation(), 1 + taken);
    }
    assert!(taken > 50 && refused > 300, "{taken} taken, {refused} refused: the mutations are no test");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn mutate(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, b"[]{}\"'=.,\n#-0\\"[random.below(14)]),
            3 => bytes.truncate(at.max(1)),
            4 => {
                let end = (at + random.below(200)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}
