//! The list of all keys that a configuration may have, with kinds and defaults. Checking, `config show`, the
//! environment and the defaults all use this list.

use super::value::Kind;

/// A complete configuration file with comments, whose values are the defaults below.
pub const SAMPLE: &str = include_str!("../../config/rationd.toml");

/// A key of a section.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The default, as a variable would be set. `None` when it is unset, or computed at the start.
    pub(crate) default: Option<&'static str>,
}

const fn key(section: &'static str, name: &'static str, kind: Kind, default: Option<&'static str>) -> Key {
    Key { section, name, kind, default }
}

const fn choice(words: &'static [&'static str]) -> Kind {
    Kind::Choice(words)
}

/// All keys outside `[policy]`.
pub(crate) const KEYS: &[Key] = &[
    key("listen", "socket", Kind::Path, None),
    key("listen", "mode", Kind::Mode, Some("0660")),
    key("listen", "group", Kind::Text, None),
    key("listen", "allow_uids", Kind::Uids, None),
    key("listen", "admin_uids", Kind::Uids, None),
    key("listen", "envoy", Kind::ListenAddress, None),
    key("listen", "envoy_headers", choice(&["draft", "x", "github", "off"]), Some("draft")),
    key("listen", "tcp", Kind::Address, Some("off")),
    key("listen", "tcp_cert", Kind::Path, None),
    key("listen", "tcp_key", Kind::Path, None),
    key("listen", "tcp_ca", Kind::Path, None),
    key("listen", "tcp_users", Kind::Path, None),
    key("listen", "admin", Kind::Address, Some("127.0.0.1:9464")),
    key("listen", "admin_checks", Kind::Bool, Some("false")),
    key("listen", "admin_keys", Kind::Bool, Some("false")),
    key("listen", "admin_hosts", Kind::Words, None),
    key("listen", "max_connections", Kind::Count(1, 1_000_000), Some("10000")),
    key("listen", "max_connections_per_uid", Kind::Count(1, 1_000_000), Some("1024")),
    key("listen", "threads", Kind::Count(0, 1_024), Some("0")),
    key("store", "url", Kind::Url, Some("memory:")),
    key("store", "timeout", Kind::Period(1_000, 5_000_000), Some("50ms")),
    key("store", "prefix", Kind::Prefix, Some("ration")),
    key("store", "confirm", choice(&["auto", "on", "off"]), Some("auto")),
    key("store", "ca", Kind::Path, None),
    key("store", "cert", Kind::Path, None),
    key("store", "key", Kind::Path, None),
    key("store", "password_file", Kind::Path, None),
    key("store", "digest_secret_file", Kind::Path, None),
    key("node", "name", Kind::Name, None),
    key("node", "max_keys", Kind::Count(16, 100_000_000), Some("1000000")),
    key("node", "max_memory", Kind::Size(32 << 20, 1 << 50), None),
    key("fleet", "name", Kind::Label, None),
    key("fleet", "listen", Kind::Listen, None),
    key("fleet", "advertise", Kind::Reach, None),
    key("fleet", "seeds", Kind::Seeds, None),
    key("fleet", "tick", Kind::Period(50_000, 5_000_000), Some("200ms")),
    key("fleet", "owner", choice(&["auto", "always", "never"]), Some("never")),
    key("fleet", "top", choice(&["totals", "keys", "off"]), Some("totals")),
    key("fleet", "ca", Kind::Path, None),
    key("fleet", "cert", Kind::Path, None),
    key("fleet", "key", Kind::Path, None),
    key("fleet", "crl", Kind::Path, None),
    key("denials", "file", Kind::Path, None),
    key("denials", "keys", choice(&["clipped", "digest"]), Some("clipped")),
    key("record", "file", Kind::Path, None),
    key("record", "size", Kind::Size(1 << 20, 1 << 40), Some("64MiB")),
    key("record", "keys", Kind::Bool, Some("false")),
    key("log", "format", choice(&["auto", "text", "json"]), Some("auto")),
    key("log", "level", Kind::Text, Some("info")),
];

/// The section that may be missing as a whole, which means that the node is alone. Its defaults apply when any key of
/// it is set.
pub(crate) const FLEET: &str = "fleet";

/// Keys that a fleet requires, and what to do about each.
pub(crate) const FLEET_NEEDS: &[(&str, &str)] = &[
    ("name", "name the fleet, like name = \"prod\""),
    ("listen", "like listen = \"0.0.0.0:7946\""),
    ("ca", "`rationd cert ca` makes it"),
    ("cert", "`rationd cert node` makes it"),
    ("key", "`rationd cert node` makes it"),
];

/// Keys of `[policy.NAME]`.
pub(crate) const POLICY: &[(&str, Kind)] = &[
    ("limits", Kind::Texts),
    ("candidate", Kind::Texts),
    ("on_store_loss", choice(&["share", "entitled", "allow", "deny"])),
    ("shadow", Kind::Bool),
    ("enforce", Kind::Count(0, 100)),
    ("refunds", Kind::Bool),
    ("unlimited", Kind::Bool),
];

/// Keys of `[policy.NAME.override.KEY]`.
pub(crate) const OVERRIDE: &[(&str, Kind)] =
    &[("limits", Kind::Texts), ("unlimited", Kind::Bool), ("blocked", Kind::Bool)];

/// The policy of a daemon without any configuration: its name and its limit.
pub(crate) const SAMPLE_POLICY: (&str, &str) = ("api", "100/1s burst 200");

/// The table of routes from descriptors to policies: a list of them for each domain.
pub(crate) const DESCRIPTORS: &str = "descriptors";

/// Keys of `[[descriptors.DOMAIN]]`.
pub(crate) const ROUTE: &[(&str, Kind)] =
    &[("match", Kind::Words), ("policy", Kind::Text), ("key", Kind::Words), ("replaces", Kind::Words)];

/// The sections, each once, in order.
pub(crate) fn sections() -> impl Iterator<Item = &'static str> {
    ["listen", "store", "node", FLEET, "denials", "record", "log"].into_iter()
}

/// The keys of a section.
pub(crate) fn keys_of(section: &str) -> impl Iterator<Item = &'static Key> + use<'_> {
    KEYS.iter().filter(move |key| key.section == section)
}
