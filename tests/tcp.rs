//! The TCP address: for whom it is, what a user of it may do, and TLS on it.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::serve::tcp::{RemoteAccess, TcpFiles};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use support::daemon::{Client, TestDaemon, until};
use support::process::Daemon;
use support::server::Certificates;

/// The users of the tests: `app` may use one policy, `ops` is an administrator, and `default` may use all. The password
/// of each is "secret".
const USERS: &str = r#"
[app]
password_sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
policies = ["api"]

[ops]
password_sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
admin = true

[default]
password_sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
"#;

/// A daemon with a TCP address, and where that is.
struct Served {
    daemon: TestDaemon,
    address: SocketAddr,
    remote: Arc<ArcSwap<RemoteAccess>>,
}

impl Served {
    fn with(remote: RemoteAccess, change: impl FnOnce(&mut rationd::serve::StartOptions)) -> Self {
        let remote = Arc::new(ArcSwap::from_pointee(remote));
        let daemon = TestDaemon::with(|options| {
            options.tcp = Some(([127, 0, 0, 1], 0).into());
            options.remote = remote.clone();
            options.policies = Arc::new(ArcSwap::from_pointee(policies()));
            change(options);
        });
        let address = daemon.daemon().tcp().expect("it listens");
        Self { daemon, address, remote }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("the daemon listens");
        Client::over(OwnedFd::from(stream).into())
    }

    /// The status and the body of the answer to a request.
    fn http(&self, head: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).expect("the daemon reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, text)
    }
}

fn policies() -> PolicySet {
    let spec = PolicySpec { limits: vec!["5/1h fixed".into()], ..PolicySpec::default() };
    let specs = ["api", "login"].map(|name| (name.to_owned(), spec.clone())).into();
    PolicySet::compile(&specs).expect("the policies are right")
}

fn with_users() -> RemoteAccess {
    let users = rationd::serve::tcp::users::Users::parse(USERS).expect("the users are right");
    RemoteAccess { tls: None, users: Some(users) }
}

fn with_tls(certificates: &Certificates, clients_too: bool) -> RemoteAccess {
    let files = TcpFiles {
        identity: Some((certificates.path("server.pem"), certificates.path("server.key"))),
        ca: clients_too.then(|| certificates.path("ca.pem")),
        users: None,
    };
    RemoteAccess::read(&files, &policies()).expect("the certificates are right")
}

#[test]
fn tcp_serves_what_the_socket_serves() {
    let served = Served::with(RemoteAccess::default(), |_| {});
    let (mut client, mut local) = (served.client(), served.daemon.client());
    assert!(client.ask("RATION.CHECK api k COST 2").starts_with("0 5 3 "));
    assert!(local.ask("RATION.CHECK api k").starts_with("0 5 2 "), "they count together");
    assert!(client.ask("CL.THROTTLE k 5 10 60").starts_with("0 6 5 "));
    assert_eq!(client.ask("AUTH secret"), "OK", "a client may be configured with a password that nobody wants");
    let pipeline = b"PING\r\n".repeat(10_000);
    client.send(&pipeline);
    (0..10_000).for_each(|_| assert!(client.reply().is_some()));
    for line in ["RATION.RESET api k", "RATION.KEYS", "RATION.RELOAD"] {
        let refused = client.ask(line);
        assert!(refused.contains("is for administrators: over TCP these are users with admin = true"), "{refused}");
    }
}

#[test]
fn connections_over_tcp_are_as_many_as_those_of_one_user() {
    let served = Served::with(RemoteAccess::default(), |options| options.limits.connections_per_uid = 2);
    let mut clients = [served.client(), served.client()];
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("PING"), "PONG"));
    let mut third = served.client();
    assert_eq!(support::daemon::show(&third.reply().expect("a reason")), "-ERR max number of clients reached");
    assert!(third.is_closed());
    assert_eq!(served.daemon.client().ask("PING"), "PONG", "processes of this host have their own share");
    drop(clients);
    until("a place is free", || served.client().ask_or_end("PING").as_deref() == Some("PONG"));
}

#[test]
fn web_pages_can_neither_read_nor_spend_over_tcp() {
    let served = Served::with(RemoteAccess::default(), |_| {});
    let checked = served.http("POST /v1/check?policy=api&key=k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0");
    assert_eq!(checked.0, 200, "{}", checked.1);
    for (head, status) in [
        ("GET /v1/check?policy=api&key=k HTTP/1.1\r\nHost: localhost", 405),
        ("POST /v1/check?policy=api&key=k HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0", 403),
        (
            "POST /v1/check?policy=api&key=k HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\nContent-Length: 0",
            403,
        ),
        ("GET /v1/explain?policy=api&key=k HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site", 403),
    ] {
        assert_eq!(served.http(head).0, status, "{head}");
    }
    assert!(served.daemon.client().ask("RATION.CHECK api k PEEK").starts_with("0 5 4 "), "one was charged");
}

#[test]
fn who_is_no_user_may_only_say_who_it_is() {
    let served = Served::with(with_users(), |_| {});
    let mut client = served.client();
    for line in ["RATION.CHECK api k", "PING", "MULTI", "CL.THROTTLE k 5 10 60", "INFO", "NONSENSE"] {
        assert_eq!(client.ask(line), "-NOAUTH Authentication required.", "{line}");
    }
    assert!(client.ask("HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    for line in ["AUTH wrong", "AUTH app wrong", "AUTH nobody secret", "HELLO 3 AUTH app wrong"] {
        assert!(client.ask(line).starts_with("-WRONGPASS "), "{line}");
        assert!(client.ask("PING").starts_with("-NOAUTH "), "{line}");
    }
    assert_eq!(client.ask("AUTH secret"), "OK", "the user of a client that names none is `default`");
    assert!(client.ask("RATION.CHECK login k").starts_with("0 5 4 "));
    assert_eq!(client.ask("RESET"), "RESET");
    assert_eq!(client.ask("PING"), "-NOAUTH Authentication required.");
    assert_eq!(served.daemon.client().ask("PING"), "PONG", "the socket's mode and uids decide who uses it");
}

#[test]
fn a_user_may_use_the_policies_that_are_listed() {
    let served = Served::with(with_users(), |_| {});
    let mut app = served.client();
    assert!(app.ask("HELLO 3 AUTH app secret").contains("rationd"));
    assert!(app.ask("RATION.CHECK api k").contains('4'), "its own policy");
    let refused = "-NOPERM user 'app' may not use policy 'login': see `policies` in listen.tcp_users";
    for line in [
        "RATION.CHECK login k",
        "RATION.MCHECK 2 api k 1 login k 1",
        "RATION.REFUND login k 1",
        "RATION.HOLD login k 1",
        "RATION.LEASE login k 1",
        "RATION.HEADERS login k",
        "RATION.EXPLAIN login k",
        "RATION.RELEASE login k 1",
    ] {
        assert_eq!(app.ask(line), refused, "{line}");
    }
    for line in ["CL.THROTTLE k 5 10 60", "THROTTLE k 5 10 60 1"] {
        assert!(app.ask(line).starts_with("-NOPERM user 'app' may not use limits of its own"), "{line}");
    }
    assert_eq!(app.ask("MULTI"), "OK");
    assert_eq!(app.ask("RATION.CHECK login k"), "QUEUED");
    app.send(b"EXEC\r\n");
    assert_eq!(app.array(), 1);
    assert_eq!(support::daemon::show(&app.reply().expect("an error")), refused);
    let told = app.ask("RATION.RESET api k");
    assert!(told.starts_with("-NOPERM RATION.RESET is for administrators: user 'app' has no admin = true"), "{told}");
    let mut ops = served.client();
    assert_eq!(ops.ask("AUTH ops secret"), "OK");
    assert_eq!(ops.ask("RATION.RESET api k"), "OK");
    assert!(ops.ask("RATION.CHECK login other").starts_with("0 5 4 "), "nothing was charged by what was refused");
}

#[test]
fn http_over_tcp_wants_a_user_too() {
    let served = Served::with(with_users(), |_| {});
    // app:secret and ops:secret
    let [app, ops] = ["YXBwOnNlY3JldA==", "b3BzOnNlY3JldA=="].map(|coded| format!("\r\nAuthorization: Basic {coded}"));
    let ask = |policy: &str, who: &str| {
        served.http(&format!("GET /v1/check?policy={policy}&key=k HTTP/1.1\r\nHost: any.example{who}"))
    };
    let (status, text) = ask("api", "");
    assert!(status == 401 && text.to_lowercase().contains("www-authenticate: basic realm=\"rationd\""), "{text}");
    assert_eq!(ask("api", "\r\nAuthorization: Basic YXBwOndyb25n").0, 401);
    assert_eq!(ask("api", &app).0, 200);
    let (status, text) = ask("login", &app);
    assert!(status == 403 && text.contains("may not use policy 'login'"), "{text}");
    assert_eq!(ask("login", &ops).0, 200);
}

#[test]
fn users_that_change_change_what_open_connections_may() {
    let served = Served::with(with_users(), |_| {});
    let mut app = served.client();
    assert_eq!(app.ask("AUTH app secret"), "OK");
    let replace = |text: &str| {
        let users = rationd::serve::tcp::users::Users::parse(text).expect("the users are right");
        served.remote.store(Arc::new(RemoteAccess { tls: None, users: Some(users) }));
    };
    replace(&USERS.replace("[\"api\"]", "[\"login\"]"));
    assert!(app.ask("RATION.CHECK login k").starts_with("0 "));
    assert!(app.ask("RATION.CHECK api k").starts_with("-NOPERM "));
    replace(&USERS.replace("[app]", "[another]"));
    assert!(app.ask("RATION.CHECK login k").starts_with("-NOAUTH "));
}

/// What redis-cli prints for `words`, over TLS.
fn over_tls(address: SocketAddr, certificates: &Certificates, own: bool, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &address.port().to_string(), "--tls"]);
    command.arg("--cacert").arg(certificates.path("ca.pem"));
    if own {
        command.arg("--cert").arg(certificates.path("client.pem")).arg("--key").arg(certificates.path("client.key"));
    }
    let output = command.args(words).output().expect("redis-cli runs");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn tls_serves_whoever_trusts_the_certificate() {
    let certificates = Certificates::make();
    let served = Served::with(with_tls(&certificates, false), |_| {});
    let told = over_tls(served.address, &certificates, false, &["RATION.CHECK", "api", "k"]);
    assert!(told.starts_with("0\n5\n4\n"), "{told}");
    let mut plain = served.client();
    plain.send(b"PING\r\n");
    assert!(plain.reply_or_end().is_none(), "nothing is said without TLS");
    let others = Certificates::make();
    let deceived = over_tls(served.address, &others, false, &["PING"]);
    assert!(deceived.contains("certificate verify failed"), "{deceived}");
    // New certificates are used by the next connection.
    served.remote.store(Arc::new(with_tls(&others, false)));
    assert_eq!(over_tls(served.address, &others, false, &["PING"]), "PONG\n");
}

#[test]
fn tls_with_a_ca_serves_only_its_clients() {
    let certificates = Certificates::make();
    let served = Served::with(with_tls(&certificates, true), |_| {});
    assert_eq!(over_tls(served.address, &certificates, true, &["PING"]), "PONG\n");
    let refused = over_tls(served.address, &certificates, false, &["PING"]);
    assert!(!refused.contains("PONG"), "{refused}");
}

#[test]
fn a_long_answer_over_tls_arrives_whole() {
    let certificates = Certificates::make();
    let served = Served::with(with_tls(&certificates, false), |_| {});
    let long = "x".repeat(60_000);
    let words: Vec<&str> = std::iter::once("ECHO").chain([long.as_str()]).collect();
    for _ in 0..8 {
        assert_eq!(over_tls(served.address, &certificates, false, &words).trim_end().len(), long.len());
    }
}

/// Who leaves a connection open that the daemon has closed keeps none of the daemon's descriptors.
#[test]
fn a_connection_with_tls_ends_when_the_daemon_ends_it() {
    let certificates = Certificates::make();
    let path = |name: &str| certificates.path(name).display().to_string();
    fs::set_permissions(certificates.path("server.key"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (cert, key) = (path("server.pem"), path("server.key"));
    let daemon = Daemon::start(&format!(
        "tcp = \"127.0.0.1:0\"\ntcp_cert = {cert:?}\ntcp_key = {key:?}\n[policy.api]\nlimits = [\"5/1h fixed\"]\n"
    ));
    let left: Vec<_> = (0..8).map(|_| quit_and_stay(daemon.tcp(), &certificates)).collect();
    until("the daemon has closed its ends", || held_open(daemon.tcp()) == 0);
    drop(left);
}

/// Connections to that address whose accepting end a process has open. Those that were closed there have no inode, also
/// while their other end stays.
fn held_open(address: SocketAddr) -> usize {
    let local = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let is_held = |line: &&str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        words.len() > 9 && words[1].ends_with(&local) && words[3] != "0A" && words[9] != "0"
    };
    table.lines().filter(is_held).count()
}

/// A client that says QUIT over TLS, hears the answer, and does not close its end.
fn quit_and_stay(address: SocketAddr, certificates: &Certificates) -> TcpStream {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(certificates.path("ca.pem")).expect("it is PEM") {
        roots.add(certificate.expect("it is whole")).expect("it is a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("there are some").with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let mut session = rustls::ClientConnection::new(Arc::new(config), name).expect("it is right");
    let mut stream = TcpStream::connect(address).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    let mut text = Vec::new();
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    tls.write_all(b"QUIT\r\n").expect("the daemon reads");
    tls.read_to_end(&mut text).expect("it says that it ends");
    assert_eq!(text, b"+OK\r\n");
    stream
}

#[test]
fn who_does_not_say_who_it_is_may_not_stay() {
    let served = Served::with(with_users(), |options| options.limits.patience = Duration::from_millis(50));
    let mut stranger = served.client();
    assert!(stranger.is_closed(), "it has said nothing");
    let mut app = served.client();
    assert_eq!(app.ask("AUTH app secret"), "OK");
    let mut other = served.client();
    assert!(other.is_closed(), "as long has passed for who is known");
    assert_eq!(app.ask("PING"), "PONG");
}

/// The problem of a configuration, as `rationd config check` tells it.
fn problem(listen: &str, files: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("a file");
    }
    let file: PathBuf = directory.path().join("rationd.toml");
    fs::write(&file, format!("[listen]\n{listen}\n[policy.api]\nlimits = [\"5/1h fixed\"]\n")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    let output = command.env_clear().arg("-c").arg(&file).args(["config", "check"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{listen}: {told}");
    told
}

#[test]
fn beyond_this_host_tcp_wants_tls_and_users_or_certificates() {
    for (listen, said) in [
        ("tcp = \"0.0.0.0:6380\"", "which other hosts reach, without TLS"),
        ("tcp = \"0.0.0.0:6380\"", "and anybody there could spend"),
        ("tcp = \"[::]:6380\"\ntcp_users = \"users.toml\"", "without TLS"),
        (
            "tcp = \"0.0.0.0:6380\"\ntcp_cert = \"a\"\ntcp_key = \"b\"",
            "set listen.tcp_users (passwords) or listen.tcp_ca",
        ),
        ("tcp = \"127.0.0.1:6380\"\ntcp_cert = \"a\"", "listen.tcp_cert without listen.tcp_key"),
        ("tcp = \"127.0.0.1:6380\"\ntcp_key = \"a\"", "listen.tcp_key without listen.tcp_cert"),
        ("tcp = \"127.0.0.1:6380\"\ntcp_ca = \"a\"", "only TLS has certificates"),
        ("tcp_users = \"users.toml\"", "listen.tcp_users is set, but there is no listen.tcp"),
    ] {
        let told = problem(listen, &[("users.toml", USERS)]);
        assert!(told.contains(said), "{listen}: {told}");
    }
}

#[test]
fn files_of_the_tcp_address_that_are_wrong_are_named() {
    let users = "tcp = \"127.0.0.1:6380\"\ntcp_users = \"users.toml\"";
    for (listen, files, said) in [
        (users, &[][..], "users.toml: No such file"),
        (users, &[("users.toml", "")], "users.toml: has no user"),
        (users, &[("users.toml", USERS)].map(|(name, _)| (name, "[a]\npassword_sha256 = \"x\"")), "is no SHA-256"),
        (
            "tcp = \"127.0.0.1:6380\"\ntcp_cert = \"c\"\ntcp_key = \"k\"",
            &[("c", "no PEM"), ("k", "")],
            "has no certificate",
        ),
    ] {
        let told = problem(listen, files);
        assert!(told.contains(said), "{listen}: {told}");
    }
    let stranger = USERS.replace("[\"api\"]", "[\"absent\"]");
    let told = problem(users, &[("users.toml", &stranger)]);
    assert!(told.contains("users.toml: [app] is given policy 'absent': there is none"), "{told}");
}
