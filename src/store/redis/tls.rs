//! TLS to a Redis server: which certificates to trust, and which one to present.
//!
//! Certificates from files are parsed once. Those of the system are read at each handshake, because they change.
//! Called by `options.rs`, which reads the files, and by `stream.rs`.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Which certificates to trust, and which one to present. By default the system's are trusted, and none is presented.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    roots: Option<Arc<RootCertStore>>,
    own: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("ca", &self.roots.is_some()).field("cert", &self.own.is_some()).finish()
    }
}

impl Tls {
    /// Parses PEM: the certificates of the CA, and the client's certificate with its key.
    ///
    /// # Errors
    /// What is wrong, in words for people.
    pub(super) fn new(ca: Option<&[u8]>, own: Option<(&[u8], &[u8])>) -> Result<Self, String> {
        let mut tls = Self::default();
        if let Some(ca) = ca {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|error| format!("the CA's certificate: {error}"))?;
            }
            tls.roots = Some(Arc::new(roots));
        }
        if let Some((chain, key)) = own {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the private key: {error}"))?;
            tls.own = Some(Arc::new((certificates(chain)?, key)));
        }
        Ok(tls)
    }

    /// The settings of a handshake.
    ///
    /// # Errors
    /// The system's certificates cannot be read, or the key does not belong to the certificate.
    pub(super) fn config(&self) -> io::Result<ClientConfig> {
        let roots = match &self.roots {
            Some(roots) => RootCertStore::clone(roots),
            None => system_roots()?,
        };
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some(own) = &self.own else { return Ok(config.with_no_client_auth()) };
        let (chain, key) = &**own;
        config.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(io::Error::other)
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<_, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.map_err(|error| format!("a certificate: {error}"))
}

fn system_roots() -> io::Result<RootCertStore> {
    let mut found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.pop() {
        return Err(io::Error::other(error));
    }
    let mut roots = RootCertStore::empty();
    for certificate in found.certs {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    Ok(roots)
}
