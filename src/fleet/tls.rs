//! TLS between peers: version 1.3, certificates on both sides, one fleet.
//!
//! Both sides must name the protocol `rationd/1/<fleet>` (ALPN), so peers of another fleet or of an incompatible
//! version separate before any data is sent. Sessions are never resumed, because a resumed session would skip
//! the check of the certificate under the present CA.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;

use super::identity::Identity;

/// Version of the protocol between peers. Nodes with different versions cannot connect.
const PROTOCOL: &str = "rationd/1";

/// TLS settings for both roles, made from one identity.
pub(crate) struct Credentials {
    pub(crate) server: Arc<QuicServerConfig>,
    pub(crate) client: Arc<QuicClientConfig>,
    pub(crate) judge: Judge,
    /// When the certificate expires, in Unix seconds.
    pub(crate) not_after: i64,
}

impl Credentials {
    /// Credentials for `fleet`.
    ///
    /// # Errors
    /// What is wrong with the identity, in words for people: most often the key does not belong to the certificate.
    pub(crate) fn new(identity: &Identity, fleet: &str) -> Result<Self, String> {
        let alpn = vec![format!("{PROTOCOL}/{fleet}").into_bytes()];
        let judge = judge(identity)?;
        let server = server(identity, alpn.clone(), judge.clone()).map_err(|error| error.to_string())?;
        let client = client(identity, alpn).map_err(|error| error.to_string())?;
        let server = QuicServerConfig::try_from(server).map_err(|error| error.to_string())?;
        let client = QuicClientConfig::try_from(client).map_err(|error| error.to_string())?;
        let (server, client) = (Arc::new(server), Arc::new(client));
        Ok(Self { server, client, judge: Judge(judge), not_after: identity.not_after })
    }
}

/// Judges certificates: signed by the CA, neither expired nor revoked.
#[derive(Clone, Debug)]
pub(crate) struct Judge(Arc<dyn ClientCertVerifier>);

impl Judge {
    /// Whether a peer with this chain would be accepted at `now`, Unix time.
    pub(crate) fn is_right(&self, chain: &[CertificateDer<'_>], now: Duration) -> bool {
        let now = UnixTime::since_unix_epoch(now);
        chain.split_first().is_some_and(|(own, rest)| self.0.verify_client_cert(own, rest, now).is_ok())
    }
}

fn judge(identity: &Identity) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(identity.roots.clone()), provider());
    let verifier = verifier.with_crls(identity.revoked.iter().cloned());
    // A revocation list covers only certificates of its own CA. While the CA is replaced there are two.
    let verifier = verifier.only_check_end_entity_revocation().allow_unknown_revocation_status();
    verifier.build().map_err(|error| error.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server(
    identity: &Identity,
    alpn: Vec<Vec<u8>>,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = alpn;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(identity: &Identity, alpn: Vec<Vec<u8>>) -> Result<rustls::ClientConfig, rustls::Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(identity.roots.clone()), provider())
        .with_crls(identity.revoked.iter().cloned())
        .only_check_end_entity_revocation()
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = alpn;
    config.resumption = Resumption::disabled();
    Ok(config)
}
