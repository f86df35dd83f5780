//! The DNS names in a node's certificate, which are made from the names of the fleet and of the node.
//!
//! Each certificate has the name `node.<fleet>.rationd`, which a dialler verifies for every peer, and a second one
//! that says which node may use the certificate: `<label>.node.<fleet>.rationd`, or `*.node.<fleet>.rationd` for an
//! image that many nodes share. These names are never looked up in DNS.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// Longest label that DNS allows.
const MAX_LABEL: usize = 63;

/// What the label of a hashed name starts with.
const HASHED: &str = "x-";

/// Bytes of the hash in a label.
const HASH_BYTES: usize = 20;

/// Whether `text` is a DNS label in its one form: 1 to 63 lower-case letters, digits and inner hyphens.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=MAX_LABEL).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name that every certificate of a fleet has.
#[must_use]
pub fn fleet_name(fleet: &str) -> String {
    format!("node.{fleet}.rationd")
}

/// The name that allows only the node called `node` to use a certificate.
///
/// A node's name may be any printable text (`Host_7.example`), but a label may not. So a name that is a label is used
/// as it is, and any other becomes `x-` and the first 160 bits of its SHA-256 in hexadecimal. One direction is
/// enough: a peer states its full name, and the label is computed from it. Names that begin with `x-` are hashed,
/// too, so that none can imitate another's hash.
#[must_use]
pub fn node_name(fleet: &str, node: &str) -> String {
    format!("{}.{}", label(node), fleet_name(fleet))
}

/// The name that allows every node of a fleet to use a certificate.
#[must_use]
pub fn any_node_name(fleet: &str) -> String {
    format!("*.{}", fleet_name(fleet))
}

fn label(node: &str) -> String {
    if is_label(node) && !node.starts_with(HASHED) {
        return node.to_owned();
    }
    let mut label = HASHED.to_owned();
    for byte in &digest(&SHA256, node.as_bytes()).as_ref()[..HASH_BYTES] {
        let _ = write!(label, "{byte:02x}");
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_a_label_stands_as_it_is() {
        assert_eq!(node_name("prod", "app-17"), "app-17.node.prod.rationd");
    }

    #[test]
    fn other_names_are_hashed_into_distinct_labels() {
        let names = ["App-17", "app_17", "app.17", "x-app", &"a".repeat(64), "-a"];
        let labels: std::collections::BTreeSet<_> = names.iter().map(|name| label(name)).collect();
        assert_eq!(labels.len(), names.len());
        assert!(labels.iter().all(|label| is_label(label) && label.len() == 42 && label.starts_with("x-")));
    }

    #[test]
    fn nobody_is_called_like_the_hash_of_another() {
        let hashed = label("App-17");
        assert_ne!(label(&hashed), hashed);
    }
}
