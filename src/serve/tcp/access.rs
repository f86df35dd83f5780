//! Who may use the TCP address: the server's certificate, the CA of clients' certificates, and the users, as their
//! files say.
//!
//! All of it is read at the start and at each reload, and replaced as a whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};

use super::users::Users;
use crate::config::Listen;
use crate::core::policy::PolicySet;

/// The files that the TCP address needs; see the keys `listen.tcp_…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpFiles {
    /// The server's certificate with its chain, and its private key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The CAs that clients' certificates are checked with; `None` when clients need none.
    pub ca: Option<PathBuf>,
    /// The users; `None` when clients need no password.
    pub users: Option<PathBuf>,
}

/// Who may use the TCP address.
#[derive(Clone, Debug, Default)]
pub struct RemoteAccess {
    /// TLS with the present certificates; `None` for plain TCP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The users; `None` when clients need no password.
    pub users: Option<Users>,
}

impl TcpFiles {
    /// The files that a configuration names.
    #[must_use]
    pub fn of(listen: &Listen) -> Self {
        Self {
            identity: listen.tcp_cert.clone().zip(listen.tcp_key.clone()),
            ca: listen.tcp_ca.clone(),
            users: listen.tcp_users.clone(),
        }
    }
}

impl RemoteAccess {
    /// Reads the files; users may be given `policies` only.
    ///
    /// # Errors
    /// The key whose file is wrong, and what is wrong with it.
    pub fn read(files: &TcpFiles, policies: &PolicySet) -> Result<Self, (&'static str, String)> {
        let tls = match &files.identity {
            Some((cert, key)) => Some(Arc::new(tls(cert, key, files.ca.as_deref())?)),
            None => None,
        };
        let users = match &files.users {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
                let users = text.and_then(|text| Users::parse(&text)).and_then(|users| {
                    let unknown = users.unknown_policies(policies).next();
                    let problem =
                        unknown.map(|(user, policy)| format!("[{user}] is given policy '{policy}': there is none"));
                    problem.map_or(Ok(users), Err)
                });
                Some(users.map_err(|problem| unusable("listen.tcp_users", path, &problem))?)
            }
            None => None,
        };
        Ok(Self { tls, users })
    }
}

fn unusable(key: &'static str, path: &Path, problem: &dyn std::fmt::Display) -> (&'static str, String) {
    (key, format!("{key} {}: {problem}", path.display()))
}

fn tls(cert: &Path, key: &Path, ca: Option<&Path>) -> Result<rustls::ServerConfig, (&'static str, String)> {
    let chain = certificates("listen.tcp_cert", cert)?;
    let own = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("listen.tcp_key", key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = match ca {
        None => Arc::new(NoClientAuth) as Arc<_>,
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("listen.tcp_ca", path)? {
                roots.add(certificate).map_err(|error| unusable("listen.tcp_ca", path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            verifier.build().map_err(|error| unusable("listen.tcp_ca", path, &error))?
        }
    };
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("listen.tcp_cert", cert, &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, own);
    let mut config = config.map_err(|error| unusable("listen.tcp_key", key, &error))?;
    // A resumed session would skip the check of the client's certificate under the present CA.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, (&'static str, String)> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unusable(key, path, &error))?;
    if found.is_empty() {
        return Err(unusable(key, path, &"has no certificate: PEM was wanted"));
    }
    Ok(found)
}
