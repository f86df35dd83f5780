//! Checks of the fleet: certificates, ports, seeds, and who is there.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use super::check::{Check, Look};
use super::lapse;
use super::patient::Patient;
use crate::clock;
use crate::config::Fleet;
use crate::fleet::{fleet_name, node_name};

/// A peer that was silent for so long is reported. It is given up after six seconds.
const QUIET_MS: u64 = 5_000;
/// The most by which clocks may differ without a warning.
const APART_MS: u64 = 1_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "fleet.store",
        why: "Without a shared store every node counts for itself, and each admits the whole limit.",
        next: "Set store.url to a Redis that all nodes reach.",
        see: "concepts/fleet.md",
        look: store,
    },
    Check {
        id: "fleet.certificate",
        why: "Peers let nobody in whose certificate is another's, has lapsed, or is not of their CA.",
        next: "`rationd cert node` makes one; changed files are used at once.",
        see: "concepts/fleet.md#who-is-believed",
        look: certificate,
    },
    Check {
        id: "fleet.port",
        why: "The daemon does not start when it cannot listen for peers.",
        next: "Choose another fleet.listen, or stop who listens there.",
        see: "concepts/fleet.md#setting-it-up",
        look: port,
    },
    Check {
        id: "fleet.address",
        why: "Peers on other machines cannot reach a loopback address.",
        next: "Set fleet.listen = \"0.0.0.0:7946\", or fleet.advertise.",
        see: "concepts/fleet.md#setting-it-up",
        look: address,
    },
    Check {
        id: "fleet.seeds",
        why: "A node that knows no other waits to be found, and two that wait never meet.",
        next: "Set fleet.seeds to some nodes, or to a name that stands for all.",
        see: "concepts/fleet.md#setting-it-up",
        look: seeds,
    },
    Check {
        id: "fleet.peers",
        why: "A node that others do not hear of counts as gone, and its share goes to them.",
        next: "Look at certificates, fleet names and the firewall (UDP) of both; `rationd peers` on each.",
        see: "operate/troubleshooting.md",
        look: peers,
    },
    Check {
        id: "fleet.clocks",
        why: "Each node judges certificates by its own clock, and one that starts again after its clock went back is let in \
              by peers only when they have given up its life before.",
        next: "Set all clocks by NTP; run this on each node, since a clock that is behind is seen from there.",
        see: "concepts/fleet.md#who-is-believed",
        look: clocks,
    },
    Check {
        id: "fleet.versions",
        why: "Nodes of several versions understand each other as far as the upgrade page says, and no further.",
        next: "Finish the upgrade.",
        see: "operate/upgrading.md",
        look: versions,
    },
];

fn section(patient: &Patient) -> Option<&Fleet> {
    patient.config()?.fleet.as_ref()
}

fn store(patient: &Patient) -> Look {
    let (Some(_), Some(config)) = (section(patient), patient.config()) else { return Look::Apart };
    if config.store.url == "memory:" {
        return Look::Fatal("[fleet] with store.url = \"memory:\"".to_owned());
    }
    Look::Ok("all nodes count in one store".to_owned())
}

fn certificate(patient: &Patient) -> Look {
    let (Some(fleet), Some(config)) = (section(patient), patient.config()) else { return Look::Apart };
    let now = Duration::from_micros(clock::wall().0);
    match days_left(fleet, &config.node.name, now) {
        Err(problem) => Look::Fatal(problem),
        Ok(days) if days < lapse::SOON => Look::Warning(format!("{} lapses in {days} days", fleet.cert.display())),
        Ok(days) => Look::Ok(format!("{}, good for {days} days", fleet.cert.display())),
    }
}

/// Whole days until the certificate of `node` lapses.
fn days_left(fleet: &Fleet, node: &str, now: Duration) -> Result<i64, String> {
    let of = |path: &std::path::Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let list = |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let found = CertificateDer::pem_file_iter(path).map_err(|error| of(path, &error))?;
        let list: Result<Vec<_>, _> = found.collect();
        let list = list.map_err(|error| of(path, &error))?;
        if list.is_empty() { Err(of(path, &"no certificate in PEM")) } else { Ok(list) }
    };
    let mut roots = RootCertStore::empty();
    for root in list(&fleet.ca)? {
        roots.add(root).map_err(|error| of(&fleet.ca, &error))?;
    }
    let chain = list(&fleet.cert)?;
    let own = ParsedCertificate::try_from(&chain[0]).map_err(|error| of(&fleet.cert, &error))?;
    for name in [fleet_name(&fleet.name), node_name(&fleet.name, node)] {
        let name = ServerName::try_from(name).map_err(|error| of(&fleet.cert, &error))?;
        if verify_server_name(&own, &name).is_err() {
            return Err(of(&fleet.cert, &format_args!("it does not name {} of fleet {}", node, fleet.name)));
        }
    }
    let key = PrivateKeyDer::from_pem_file(&fleet.key).map_err(|error| of(&fleet.key, &error))?;
    let provider = Arc::new(ring::default_provider());
    CertifiedKey::from_der(chain.clone(), key, &provider)
        .map_err(|error| of(&fleet.key, &format_args!("{error}; is it the key of {}?", fleet.cert.display())))?;
    let judge = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let judge = judge.build().map_err(|error| of(&fleet.ca, &error))?;
    judge
        .verify_client_cert(&chain[0], &chain[1..], UnixTime::since_unix_epoch(now))
        .map_err(|error| of(&fleet.cert, &format_args!("{error} (its CA is {})", fleet.ca.display())))?;
    lapse::days_left(&chain[0], now).map_err(|error| of(&fleet.cert, &error))
}

fn port(patient: &Patient) -> Look {
    let Some(fleet) = section(patient) else { return Look::Apart };
    if !patient.daemon.peers.is_null() {
        return Look::Ok("the daemon listens there".to_owned());
    }
    match UdpSocket::bind(fleet.listen) {
        Ok(_) => Look::Ok(format!("{} is free", fleet.listen)),
        Err(error) => Look::Fatal(format!("{} (UDP): {error}", fleet.listen)),
    }
}

fn address(patient: &Patient) -> Look {
    let Some(fleet) = section(patient) else { return Look::Apart };
    let advertised: SocketAddr = fleet.advertise.unwrap_or(fleet.listen);
    if advertised.ip().is_loopback() {
        return Look::Warning(format!("peers are told {advertised}"));
    }
    Look::Ok(format!("peers are told {advertised}, or what leads to them"))
}

fn seeds(patient: &Patient) -> Look {
    let Some(fleet) = section(patient) else { return Look::Apart };
    if fleet.seeds.is_empty() {
        return Look::Warning("fleet.seeds is empty".to_owned());
    }
    let findings = fleet.seeds.iter().filter_map(|seed| match seed.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("{seed} has no address")),
        Err(error) => Some(format!("{seed}: {error}")),
    });
    Look::none_of(findings.collect(), Look::Warning, format!("{} can be resolved", fleet.seeds.len()))
}

fn peers(patient: &Patient) -> Look {
    let answer = &patient.daemon.peers;
    let (Some(live), Some(largest)) = (answer["live"].as_u64(), answer["largest"].as_u64()) else { return Look::Apart };
    let quiet = answer["staleness_ms"].as_u64().unwrap_or(0);
    let wanted = patient.nodes.unwrap_or(0).max(largest);
    let mut findings = Vec::new();
    if live < wanted {
        findings.push(format!("{live} of {wanted} nodes are live"));
    }
    if quiet > QUIET_MS {
        findings.push(format!("one was not heard of for {quiet} ms"));
    }
    Look::none_of(findings, Look::Warning, format!("{live} of {wanted} nodes are live"))
}

/// A node reports when it started by its own clock, so a start in our future shows that its clock is at least so far
/// ahead of ours. A clock that is behind cannot be seen in this way.
fn clocks(patient: &Patient) -> Look {
    let Some(list) = patient.daemon.peers["peers"].as_array() else { return Look::Apart };
    let now = clock::wall().0 / 1_000;
    let ahead = list.iter().filter_map(|peer| {
        let millis = peer["incarnation"].as_u64()?.saturating_sub(now);
        let name = super::super::output::visible(peer["name"].as_str()?);
        let whose = if peer["self"] == true {
            "this machine's clock went back"
        } else {
            "its clock is ahead of this machine's"
        };
        (millis > APART_MS).then(|| format!("{name} began {} s from now: {whose}", millis.div_ceil(1_000)))
    });
    Look::none_of(ahead.collect(), Look::Warning, "no node began in the future")
}

fn versions(patient: &Patient) -> Look {
    let Some(list) = patient.daemon.peers["peers"].as_array() else { return Look::Apart };
    let mut seen: Vec<_> = list.iter().filter_map(|peer| peer["version"].as_str()).filter(|v| !v.is_empty()).collect();
    seen.sort_unstable();
    seen.dedup();
    let shown = super::super::output::visible(&seen.join(", "));
    if seen.len() > 1 { Look::Warning(shown) } else { Look::Ok(shown) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_that_began_in_the_future_is_told_of() {
        let mut patient = Patient::of("", None);
        assert_eq!(clocks(&patient), Look::Apart);
        let now = clock::wall().0 / 1_000;
        for (id, began, own, word) in [
            ("fleet.clocks", now - 90_000, false, "ok"),
            ("fleet.clocks", now + 90_000, false, "warning"),
            ("fleet.clocks", now + 90_000, true, "warning"),
        ] {
            let peer = json!({"name": "app-17", "incarnation": began, "self": own});
            patient.daemon.peers = json!({"peers": [{"name": "app-9", "incarnation": now}, peer]});
            let look = clocks(&patient);
            assert_eq!(look.word(), word, "{id}");
            assert_eq!(look.seen().contains("app-17 began 90 s from now"), word == "warning", "{}", look.seen());
            assert_eq!(look.seen().contains("went back"), own, "{}", look.seen());
        }
    }

    #[test]
    fn nodes_of_several_versions_are_told_of() {
        let mut patient = Patient::of("", None);
        for (id, other, word) in [("fleet.versions", "0.1.0", "ok"), ("fleet.versions", "0.2.0", "warning")] {
            patient.daemon.peers = json!({"peers": [{"version": "0.1.0"}, {"version": other}, {"version": ""}]});
            assert_eq!(versions(&patient).word(), word, "{id}");
        }
    }
}
