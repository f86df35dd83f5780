//! Nodes of a fleet in this process, each with a runtime of its own that can be killed; the certificates
//! they prove themselves with; and a peer that says whatever a test wants.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use rationd::fleet::{
    Fleet, FleetError, FleetOptions, IdentityFiles, Incoming, Members, PeerId, any_node_name, fleet_name, node_name,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use super::membership_suite::{Node, Start};

/// The fleet of most tests.
pub const FLEET: &str = "test";

/// A fleet's CA, which makes certificates into a directory that goes with it.
pub struct Authority {
    fleet: String,
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    /// Makes the key of the node with this name.
    key: fn(&str) -> KeyPair,
}

fn fresh(_: &str) -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// An Ed25519 key that follows from the name, in PKCS #8.
fn named(name: &str) -> KeyPair {
    let head = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    let secret = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let bytes = [&head, secret.as_ref()].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&bytes.into(), &rcgen::PKCS_ED25519).expect("any 32 bytes are a key")
}

impl Authority {
    pub fn new(fleet: &str) -> Self {
        Self::with_keys(fleet, fresh)
    }

    /// The same with the same keys and certificates each time.
    pub fn repeatable(fleet: &str) -> Self {
        Self::with_keys(fleet, named)
    }

    fn with_keys(fleet: &str, keys: fn(&str) -> KeyPair) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let key = keys("the CA");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "a fleet's CA of rationd's tests");
        let pem = params.self_signed(&key).expect("a CA").pem();
        std::fs::write(directory.path().join("ca.pem"), pem).expect("a file");
        Self { fleet: fleet.to_owned(), directory, issuer: Issuer::new(params, key), key: keys }
    }

    /// Files of the node called `name`, made or made anew.
    pub fn node(&self, name: &str) -> IdentityFiles {
        self.certify(name, node_name(&self.fleet, name))
    }

    /// Makes the files of the node called `name` anew, to lapse after so many days.
    pub fn lasting(&self, days: u64, name: &str) {
        self.lapsing(Duration::from_secs(days * 24 * 60 * 60), name);
    }

    /// The same, to lapse after this time.
    pub fn lapsing(&self, after: Duration, name: &str) {
        let lapses = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_micros(super::clock::wall_us()) + after;
        self.certify_until(name, node_name(&self.fleet, name), |params| params.not_after = lapses);
    }

    /// Files that any node of the fleet may use.
    pub fn any_node(&self) -> IdentityFiles {
        self.certify("any", any_node_name(&self.fleet))
    }

    fn certify(&self, file: &str, name: String) -> IdentityFiles {
        self.certify_until(file, name, |_| {})
    }

    fn certify_until(&self, file: &str, name: String, change: impl FnOnce(&mut CertificateParams)) -> IdentityFiles {
        let key = (self.key)(file);
        let mut params = CertificateParams::new(vec![fleet_name(&self.fleet), name]).expect("parameters");
        params.serial_number = Some(SerialNumber::from_slice(file.as_bytes()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = self.files(file);
        std::fs::write(&files.cert, certificate.pem()).expect("a file");
        std::fs::write(&files.key, key.serialize_pem()).expect("a file");
        files
    }

    fn files(&self, file: &str) -> IdentityFiles {
        let path = |end: &str| self.directory.path().join(format!("{file}.{end}"));
        IdentityFiles { ca: self.ca(), cert: path("pem"), key: path("key"), crl: None }
    }

    /// A list that revokes the certificates of these nodes, in the place of the last one.
    pub fn revoke(&self, names: &[&str]) -> PathBuf {
        let revoked = names.iter().map(|name| RevokedCertParams {
            serial_number: SerialNumber::from_slice(name.as_bytes()),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let pem = list.signed_by(&self.issuer).expect("a list").pem().expect("PEM");
        let path = self.directory.path().join("ca.crl");
        std::fs::write(&path, pem).expect("a file");
        path
    }

    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// What a node of this fleet is started with, its certificates fresh.
    pub fn options(&self, start: Start<'_>) -> FleetOptions {
        self.node(start.name);
        self.options_kept(start)
    }

    /// The same with the certificates that it has.
    pub fn options_kept(&self, start: Start<'_>) -> FleetOptions {
        FleetOptions {
            fleet: self.fleet.clone(),
            node: start.name.into(),
            incarnation: start.incarnation,
            listen: start.at.unwrap_or_else(anywhere),
            advertise: None,
            seeds: start.seeds.iter().map(SocketAddr::to_string).collect(),
            tick: Duration::from_millis(200),
            identity: self.files(start.name),
            owning: start.owning,
        }
    }

    pub fn start(&self, start: Start<'_>) -> Peer {
        Peer::start(self.options(start))
    }
}

pub fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A runtime that can be killed.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A node over QUIC.
pub struct Peer {
    pub fleet: Fleet,
    pub incoming: mpsc::Receiver<Incoming>,
    runtime: Option<Runtime>,
}

impl Peer {
    pub fn start(options: FleetOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_start(options: FleetOptions) -> Result<Self, FleetError> {
        let runtime = runtime();
        let (fleet, incoming) = runtime.block_on(Fleet::start(options))?;
        Ok(Self { fleet, incoming, runtime: Some(runtime) })
    }

    /// The next frame of the usage channel.
    pub fn receive(&mut self) -> Incoming {
        let runtime = self.runtime.as_ref().expect("it runs");
        let next = async { tokio::time::timeout(Duration::from_secs(20), self.incoming.recv()).await };
        runtime.block_on(next).expect("a frame in time").expect("the node runs")
    }

    /// Runs its tasks no more: nothing is said to anybody, and the port is free again.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

impl Node for Peer {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it runs")
    }

    fn own(&self) -> PeerId {
        self.fleet.own().clone()
    }

    fn address(&self) -> SocketAddr {
        self.fleet.address()
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.fleet.members()
    }

    fn malformed(&self) -> u64 {
        self.fleet.stats().malformed
    }

    fn leave(&self) {
        self.runtime().block_on(self.fleet.leave());
    }

    fn kill(mut self: Box<Self>) {
        self.stop();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A peer with certificates and no manners: it says what it is told to.
pub struct Stranger {
    pub connection: quinn::Connection,
    _endpoint: quinn::Endpoint,
}

impl Stranger {
    /// Connects with these certificates, naming this protocol.
    pub async fn connect(files: &IdentityFiles, alpn: &str, to: SocketAddr) -> Result<Self, quinn::ConnectionError> {
        let mut endpoint = quinn::Endpoint::client(anywhere()).expect("a port");
        endpoint.set_default_client_config(client(files, alpn));
        let connection = endpoint.connect(to, &fleet_name(FLEET)).expect("a dial").await?;
        Ok(Self { connection, _endpoint: endpoint })
    }

    /// Says who it is, as `src/fleet/frame.rs` lays it down.
    pub async fn hello(&self, name: &str) {
        let mut hello = vec![0, 1];
        hello.extend(1_u64.to_le_bytes());
        for text in [name, "127.0.0.1:9"] {
            hello.push(text.len() as u8);
            hello.extend(text.as_bytes());
        }
        self.send(&[&hello]).await;
    }

    /// One stream with these parts in it. That the other side does not want it is no failure.
    pub async fn send(&self, parts: &[&[u8]]) {
        let Ok(mut stream) = self.connection.open_uni().await else { return };
        for part in parts {
            if stream.write_all(part).await.is_err() {
                return;
            }
        }
        let _ = stream.finish();
        let _ = stream.stopped().await;
    }
}

fn client(files: &IdentityFiles, alpn: &str) -> quinn::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).expect("a CA")).expect("a CA");
    let chain = vec![CertificateDer::from_pem_file(&files.cert).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("a certificate");
    tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")))
}
