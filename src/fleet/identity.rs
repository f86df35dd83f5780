//! A node's identity: the fleet's CA, the node's certificate and its private key, read from three files.
//!
//! It checks that the files fit each other, the fleet and the node, before any peer is dialled. Expiry is not checked
//! here: a node with an expired certificate goes on alone, and reports it.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use ring::{hkdf, hmac};
use rustls::RootCertStore;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;

use super::error::FleetError;
use super::names::{fleet_name, node_name};

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// The PEM files of a node's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The CA certificates that peers' certificates are checked with.
    pub ca: PathBuf,
    /// This node's certificate, and the chain to the CA if there is one.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates that the CA has revoked (CRL), if it keeps a list.
    pub crl: Option<PathBuf>,
}

/// The content of the files, not parsed. Two of them are equal when no file has changed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
    crl: Option<Vec<u8>>,
}

/// An identity that was checked against its fleet and node.
pub(crate) struct Identity {
    pub(crate) roots: RootCertStore,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// Revocation lists.
    pub(crate) revoked: Vec<CertificateRevocationListDer<'static>>,
    /// The certificate may be used under every node name.
    pub(crate) is_any: bool,
    /// When the certificate expires, in Unix seconds.
    pub(crate) not_after: i64,
}

/// Keys from which an endpoint's identifiers are derived, so that they are the same after a restart.
pub(crate) struct EndpointKeys {
    /// Derives the tokens of stateless resets.
    pub(crate) reset: hmac::Key,
    /// Marks connection ids as this endpoint's.
    pub(crate) connection_ids: u64,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl Contents {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub(crate) fn read(files: &IdentityFiles) -> Result<Self, FleetError> {
        let crl = files.crl.as_deref().map(read).transpose()?;
        Ok(Self { ca: read(&files.ca)?, cert: read(&files.cert)?, key: read(&files.key)?, crl })
    }
}

impl Identity {
    /// Parses the files for the node called `node` in `fleet`.
    ///
    /// # Errors
    /// A file has the wrong content, or the certificate is for another fleet or another node.
    pub(crate) fn parse(
        files: &IdentityFiles,
        contents: &Contents,
        fleet: &str,
        node: &str,
    ) -> Result<Self, FleetError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca, &contents.ca)? {
            roots.add(certificate).map_err(|error| wrong(&files.ca, format!("no CA certificate: {error}")))?;
        }
        let chain = certificates(&files.cert, &contents.cert)?;
        let own = &chain[0];
        for name in [fleet_name(fleet), node_name(fleet, node)] {
            if !holds_name(own, &name) {
                let problem = format!(
                    "the certificate does not name {name}: make one with \
                     `rationd cert node --fleet {fleet} --name {node}`, or with --any-name for every node"
                );
                return Err(wrong(&files.cert, problem));
            }
        }
        let not_after = expiry(own).ok_or_else(|| wrong(&files.cert, "not an X.509 certificate".into()))?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|error| wrong(&files.key, format!("no private key in PEM: {error}")))?;
        let revoked = match (&files.crl, &contents.crl) {
            (Some(path), Some(contents)) => revoked(path, contents)?,
            _ => Vec::new(),
        };
        let is_any = is_any(own, fleet);
        Ok(Self { roots, chain, key, revoked, is_any, not_after })
    }

    /// The keys of an endpoint whose address for peers is `address`.
    ///
    /// They are derived from the private key. After a restart the node can therefore reset the connections of its
    /// last incarnation, so that peers notice at once that they are gone. The address is part of the derivation,
    /// because nodes from one image share a private key, and none of them must be able to reset another's connections
    /// (RFC 9000, 21.11).
    pub(crate) fn endpoint_keys(&self, address: &str) -> EndpointKeys {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"rationd fleet endpoint");
        let secret = salt.extract(self.key.secret_der());
        let reset_info = [b"stateless reset".as_slice(), address.as_bytes()];
        let reset = secret.expand(&reset_info, hmac::HMAC_SHA256).expect("an HMAC key is a short output");
        let id_info = [b"connection ids".as_slice(), address.as_bytes()];
        let mut connection_ids = [0; 8];
        let filled = secret.expand(&id_info, Eight).and_then(|output| output.fill(&mut connection_ids));
        filled.expect("eight bytes are a short output");
        EndpointKeys { reset: hmac::Key::from(reset), connection_ids: u64::from_le_bytes(connection_ids) }
    }
}

struct Eight;

impl hkdf::KeyType for Eight {
    fn len(&self) -> usize {
        8
    }
}

/// Whether a certificate is valid for `name`, by wildcard or exactly.
pub(crate) fn holds_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(name) = ServerName::try_from(name) else { return false };
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

/// Whether a certificate is valid for every node name of the fleet.
fn is_any(certificate: &CertificateDer<'_>, fleet: &str) -> bool {
    holds_name(certificate, &node_name(fleet, "a name that no node can have"))
}

/// The revocation lists in a file, at least one.
fn revoked(path: &Path, contents: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, FleetError> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(contents).collect();
    lists.ok().filter(|lists| !lists.is_empty()).ok_or_else(|| wrong(path, "no X509 CRL in PEM".into()))
}

/// The certificates in a file, at least one.
fn certificates(path: &Path, contents: &[u8]) -> Result<Vec<CertificateDer<'static>>, FleetError> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(contents).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(wrong(path, "no certificate in PEM: make one with `rationd cert`".into())),
        Err(error) => Err(wrong(path, format!("no certificate in PEM: {error}"))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FleetError> {
    let cannot = |error: io::Error| wrong(path, format!("cannot be read: {error}; `rationd cert` makes these files"));
    if fs::metadata(path).map_err(cannot)?.len() > MAX_FILE {
        return Err(wrong(path, format!("larger than {} KiB: a PEM file was wanted", MAX_FILE >> 10)));
    }
    fs::read(path).map_err(cannot)
}

fn wrong(path: &Path, problem: String) -> FleetError {
    FleetError::Identity { path: path.to_owned(), problem }
}
