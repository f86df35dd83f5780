//! `rationd config import-envoy`: what it writes, that it is taken and means the same, and what it refuses.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rationd::config::{Loaded, Sources, load};
use rationd::core::policy::Plan;

fn import(directory: &Path, yaml: &str) -> Output {
    let file = directory.join("limits.yaml");
    fs::write(&file, yaml).expect("a file");
    Command::new(env!("CARGO_BIN_EXE_rationd"))
        .args(["config", "import-envoy"])
        .arg(&file)
        .output()
        .expect("cargo built it")
}

/// What it writes, and what it says beside.
fn imported(yaml: &str) -> (String, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let output = import(directory.path(), yaml);
    let said = String::from_utf8(output.stderr).expect("text").replace(&format!("{}/", directory.path().display()), "");
    assert!(output.status.success(), "{said}\n{yaml}");
    (String::from_utf8(output.stdout).expect("text"), said)
}

fn refused(yaml: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let output = import(directory.path(), yaml);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0), "{yaml}");
    String::from_utf8(output.stderr).expect("text").replace(&format!("{}/", directory.path().display()), "")
}

fn loaded(toml: &str) -> Loaded {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rationd.toml");
    fs::write(&file, toml).expect("a file");
    load(&Sources { file: Some(file), ..Sources::default() }).unwrap_or_else(|errors| panic!("{errors}\n{toml}"))
}

#[test]
fn a_directory_is_imported_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        command.args(["config", "import-envoy"]).arg(directory.path()).output().expect("cargo built it")
    };
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        fs::write(file, text).expect("a file");
    };
    let of = |domain: &str| {
        format!("domain: {domain}\ndescriptors:\n- key: to\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n")
    };
    let output = run();
    assert_eq!(output.status.code(), Some(78), "there is nothing in it: {output:?}");
    write("b.yaml", &of("mail"));
    write("a.yml", &of("web"));
    write("config/c.yaml", &of("deep"));
    write("notes.txt", "no configuration");
    write("..2026/b.yaml", &of("mail"));
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let loaded = loaded(&text);
    for domain in ["mail", "web", "deep"] {
        assert!(loaded.policies.routes().domain(domain).is_some(), "{domain} is not in {text}");
        assert!(loaded.policies.get(format!("{domain}|to")).is_some(), "{domain} is not in {text}");
    }
    write("z.yaml", &of("web"));
    write("y.yaml", "domain: x\ndescriptors: 3\n");
    let output = run();
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0), "{said}");
    assert!(said.contains("z.yaml: domain \"web\" stands in") && said.contains("y.yaml:2"), "all at once: {said}");
}

const SHOP: &str = r#"---
domain: shop
descriptors:
  # Few messages to a number, fewer of them advertisements.
  - key: kind
    value: advert
    descriptors:
      - key: number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: number
    rate_limit:
      name: per_number
      unit: Day
      requests_per_unit: 100
  - key: user
    rate_limit: &slow
      unit: minute
      requests_per_unit: 60
    descriptors:
      - key: path
        value: /api/*
        share_threshold: true
        rate_limit: *slow
  - key: user
    value: tester
    rate_limit:
      unlimited: yes
      replaces: [{name: per_number}, {name: nobody}]
  - key: user
    value: robot
    shadow_mode: true
    detailed_metric: true
    rate_limit:
      unit: hour
      requests_per_unit: 0
"#;

const AS_TOML: &str = r#"# Domain "shop" of limits.yaml, by `rationd config import-envoy`.
# Append it to the configuration, where listen.envoy must be set.

[policy."shop|kind=advert|number"]
limits = ["5/1d fixed"]

[[descriptors."shop"]]
match = ["kind=advert", "number"]
policy = "shop|kind=advert|number"

[policy."shop|user=tester"]
unlimited = true

[[descriptors."shop"]]
match = ["user=tester"]
policy = "shop|user=tester"
replaces = ["shop|number"]

[[descriptors."shop"]]
match = ["user=tester", "..."]

[policy."shop|user=robot"]
unlimited = true
shadow = true
[policy."shop|user=robot".override.""]
blocked = true

[[descriptors."shop"]]
match = ["user=robot"]
policy = "shop|user=robot"
key = []

[[descriptors."shop"]]
match = ["user=robot", "..."]

[policy."shop|number"]
limits = ["100/1d fixed"]

[[descriptors."shop"]]
match = ["number"]
policy = "shop|number"

[policy."shop|user"]
limits = ["60/1m fixed"]

[[descriptors."shop"]]
match = ["user"]
policy = "shop|user"

[policy."shop|user|path=/api/*"]
limits = ["60/1m fixed"]

[[descriptors."shop"]]
match = ["user", "path=/api/*"]
policy = "shop|user|path=/api/*"
key = ["user"]
"#;

#[test]
fn a_realistic_file_becomes_policies_and_routes() {
    let (toml, said) = imported(SHOP);
    assert_eq!(toml, AS_TOML);
    let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("rationd: ")).collect();
    assert_eq!(
        warnings,
        [
            "rationd: limits.yaml:28:39: no rate_limit has the name \"nobody\": this is left out",
            "rationd: limits.yaml:32:22: `detailed_metric` is left out: metrics are by policy, and none holds a value",
        ]
    );
    let loaded = loaded(&toml);
    let route = |entries: &[(&str, &str)]| {
        let route = loaded.policies.routes().domain("shop").and_then(|domain| domain.find(entries)).expect("a route");
        let policy = loaded.policies.get(route.policy.as_deref().expect("a policy")).expect("it is there");
        (policy.enforce, policy.plan(&route.key(entries)).clone())
    };
    assert_eq!(route(&[("user", "robot")]), (0, Plan::Blocked), "watched only");
    assert_eq!(route(&[("user", "tester")]), (100, Plan::Unlimited));
    assert!(matches!(route(&[("user", "x"), ("path", "/api/y")]), (100, Plan::Limited(_))));
}

#[test]
fn everything_that_is_wrong_is_pointed_at() {
    for (yaml, wanted) in [
        (
            r#"domain: d
descriptors:
  - key: a
    values: x
    unit: day
  - key: a
    quota_mode: true
"#,
            r#"rationd: limits.yaml:4:5: unknown key `values` in a descriptor
  4 |     values: x
    |     ^^^^^^ did you mean `value`?
limits.yaml:5:5: unknown key `unit` in a descriptor
  5 |     unit: day
    |     ^^^^ it belongs in rate_limit
limits.yaml:6:5: a second descriptor of key "a"
  6 |   - key: a
    |     ^^^
limits.yaml:7:17: `quota_mode` has no counterpart: every descriptor that is over its limit denies
  7 |     quota_mode: true
    |                 ^^^^
"#,
        ),
        (
            r#"domain: d
descriptors:
  - key: a
    rate_limit:
      unit: mintue
      requests_per_unit: -1
"#,
            r#"rationd: limits.yaml:5:13: `unit` is "mintue": there are second, minute, hour, day, week, month, year
  5 |       unit: mintue
    |             ^^^^^^ did you mean `minute`?
limits.yaml:6:26: `requests_per_unit` is a whole number from 0 to 4294967295
  6 |       requests_per_unit: -1
    |                          ^^
"#,
        ),
        (
            r#"domain: d
domain: e
descriptors: [{key: a=b}, {value: x}, 3]
"#,
            r#"rationd: limits.yaml:2:1: `domain` stands twice
  2 | domain: e
    | ^^^^^^
limits.yaml:3:21: "a=b": a route cannot have = or * in a key
  3 | descriptors: [{key: a=b}, {value: x}, 3]
    |                     ^^^
limits.yaml:3:28: a descriptor needs a `key`
  3 | descriptors: [{key: a=b}, {value: x}, 3]
    |                            ^^^^^
limits.yaml:3:39: a descriptor is a mapping of keys to values
  3 | descriptors: [{key: a=b}, {value: x}, 3]
    |                                       ^
"#,
        ),
    ] {
        assert_eq!(refused(yaml), wanted);
    }
    for (yaml, wanted) in [
        ("domain: d\n---\ndomain: e\n", "rationd: limits.yaml:2:1: a second document: a file holds one domain"),
        ("domain: [\n", "rationd: limits.yaml:2:1: no YAML: while parsing a node"),
        ("", "rationd: limits.yaml:1:1: there is nothing in this file"),
        ("domain: d\ndescriptors: [{key: a, descriptors: &a [*a]}]", "rationd: limits.yaml:2:"),
    ] {
        let said = refused(yaml);
        assert!(said.starts_with(wanted), "{said}");
    }
}

#[test]
fn a_file_that_would_grow_without_end_is_refused() {
    let mut bomb = String::from("domain: d\ndescriptors:\n  - &a0 {key: k}\n");
    for level in 1..40 {
        let below = level - 1;
        let _ = writeln!(bomb, "  - &a{level} {{key: k, descriptors: [*a{below}, *a{below}]}}");
    }
    assert!(refused(&bomb).contains("more than 500000 parts"));
    let deep = format!("domain: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(refused(&deep).starts_with("rationd: limits.yaml:1:"));
}

/// One branch of a configuration drawn at random.
struct Branch {
    key: &'static str,
    value: Option<&'static str>,
    limited: bool,
    below: Vec<Branch>,
}

/// Numbers that look random and repeat.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn branches(&mut self, depth: usize) -> Vec<Branch> {
        let mut branches: Vec<Branch> = Vec::new();
        for _ in 0..1 + self.below(5) {
            let (key, value) =
                (self.pick(&["a", "b"]), self.pick(&[None, Some("x"), Some("xy"), Some("x*"), Some("*y")]));
            if branches.iter().any(|branch| (branch.key, branch.value) == (key, value)) {
                continue;
            }
            let below = if depth < 2 && self.below(2) == 0 { self.branches(depth + 1) } else { Vec::new() };
            branches.push(Branch { key, value, limited: self.below(3) > 0, below });
        }
        branches
    }
}

fn write(branches: &[Branch], indent: usize, into: &mut String) {
    let pad = " ".repeat(indent);
    for Branch { key, value, limited, below } in branches {
        let _ = writeln!(into, "{pad}- key: {key}");
        if let Some(value) = value {
            let _ = writeln!(into, "{pad}  value: '{value}'");
        }
        if *limited {
            let _ = writeln!(into, "{pad}  rate_limit: {{unit: day, requests_per_unit: 7}}");
        }
        if !below.is_empty() {
            let _ = writeln!(into, "{pad}  descriptors:");
            write(below, indent + 4, into);
        }
    }
}

/// The policy that a walk down the tree ends at, as envoyproxy/ratelimit walks: the value, the first wildcard that
/// fits, the key alone, never back; a limit counts where the entries end.
fn walk(mut branches: &[Branch], entries: &[(&str, &str)]) -> Option<String> {
    let mut name = "d".to_owned();
    for (index, (key, value)) in entries.iter().enumerate() {
        let fits = |pattern: &str| match pattern.split_once('*') {
            Some((head, tail)) => value.len() >= pattern.len() - 1 && value.starts_with(head) && value.ends_with(tail),
            None => pattern == *value,
        };
        let of_key = || branches.iter().filter(|branch| branch.key == *key);
        let exact = of_key().find(|branch| branch.value == Some(*value));
        let wild =
            || of_key().find(|branch| branch.value.is_some_and(|pattern| pattern.contains('*') && fits(pattern)));
        let branch = exact.or_else(wild).or_else(|| of_key().find(|branch| branch.value.is_none()))?;
        let _ = write!(name, "|{key}");
        if let Some(value) = branch.value {
            let _ = write!(name, "={value}");
        }
        if index + 1 == entries.len() {
            return branch.limited.then_some(name);
        }
        branches = &branch.below;
    }
    None
}

#[test]
fn routes_find_what_a_walk_down_the_tree_finds() {
    let mut dice = Dice(0x5eed_1234_5678_9abc);
    let (mut found, mut lost) = (0, 0);
    for _ in 0..150 {
        let branches = dice.branches(0);
        let mut yaml = "domain: d\ndescriptors:\n".to_owned();
        write(&branches, 2, &mut yaml);
        let (toml, _) = imported(&yaml);
        let loaded = loaded(&toml);
        for _ in 0..200 {
            let length = 1 + dice.below(3);
            let entries: Vec<(&str, &str)> =
                (0..length).map(|_| (dice.pick(&["a", "b"]), dice.pick(&["x", "xy", "xxy", "y", "z", ""]))).collect();
            let route = loaded.policies.routes().domain("d").and_then(|domain| domain.find(&entries));
            let policy = route.and_then(|route| route.policy.as_deref()).map(str::to_owned);
            assert_eq!(policy, walk(&branches, &entries), "{entries:?}\n{yaml}\n{toml}");
            if policy.is_some() { found += 1 } else { lost += 1 }
        }
    }
    assert!(found > 3_000 && lost > 3_000, "{found} found, {lost} not: the draw shows nothing");
}
