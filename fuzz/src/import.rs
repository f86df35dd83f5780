//! `config import-envoy`: YAML that becomes policies and routes.
//!
//! Holds: what was translated is a configuration that a daemon starts with, and says the same when it is translated
//! again; what was not is told with its place.

use std::path::PathBuf;
use std::sync::OnceLock;

use rationd::cli::import_envoy;
use rationd::config::{Override, Sources, load};

/// What such files are made of.
pub const WORDS: &[&[u8]] = &[
    b"domain: edge\n",
    b"descriptors:\n",
    b"  - key: user\n",
    b"    value: x\n",
    b"    rate_limit:\n",
    b"      unit: minute\n",
    b"      requests_per_unit: 10\n",
    b"      unlimited: true\n",
    b"      name: n\n",
    b"      replaces:\n        - name: n\n",
    b"    shadow_mode: true\n",
    b"    detailed_metric: true\n",
    b"*",
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"\"",
    b"'",
    b"|",
    b">",
    b"{",
    b"}",
    b"[",
    b"]",
    b"- ",
    b": ",
    b"\n---\n",
    b"\n...\n",
    b"# ",
    b"~",
    b"null",
    b"!!str ",
    b"\\u0000",
    b"\xef\xbb\xbf",
    b"4294967296",
    b"\t",
    b"\x7f",
    b"      unit: year\n",
    b"\xe2\x80\xa8",
    b"?",
    b"%YAML 1.2\n",
];

/// See the module.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let toml = match import_envoy(text) {
        Ok(toml) => toml,
        Err(problems) => {
            assert!(
                !problems.is_empty() && problems.iter().all(|problem| problem.starts_with("limits.yaml")),
                "{problems:?}"
            );
            return;
        }
    };
    assert_eq!(import_envoy(text).as_ref(), Ok(&toml));
    std::fs::write(file(), &toml).expect("a file can be written");
    let door = Override { origin: "--envoy".into(), key: "listen.envoy", text: "/run/rls.sock".into() };
    let sources = Sources { file: Some(file().clone()), flags: vec![door], ..Sources::default() };
    if let Err(problems) = load(&sources) {
        panic!("what was translated is no configuration:\n{problems}\n{toml}");
    }
}

fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let directory = super::daemon::served().socket.parent().expect("it has a directory");
        directory.join("rationd.toml")
    })
}
