//! Envoy's Rate Limit Service over a Unix socket and TCP, asked by a gRPC client.

use crate::support;
use crate::support::envoy as rls;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rationd::config::ListenAddress;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::route::{RouteSet, RouteSpec};
use rationd::serve::envoy::EnvoyOptions;
use rationd::serve::envoy::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, UInt64Value, Unit,
};
use rationd::wire::headers::Style;
use rls::{Rls, told};
use support::clock::Watch;
use support::daemon::{TestDaemon, policies};
use support::poll::wait_for;
use support::process::Daemon;
use support::proxy::{Mode, Proxy};
use support::resp::Reply;
use support::server::Server;

/// The policies of the other tests, and routes to them.
fn routed() -> PolicySet {
    let route = |patterns: &[&str], policy: &str| RouteSpec {
        patterns: patterns.iter().map(|&text| text.to_owned()).collect(),
        policy: (!policy.is_empty()).then(|| policy.to_owned()),
        ..RouteSpec::default()
    };
    let routes = vec![
        route(&["user=nobody", "..."], ""),
        route(&["user"], "api"),
        route(&["watched"], "watched"),
        route(&["free"], "free"),
        RouteSpec { replaces: vec!["api".into()], ..route(&["user", "plan=gold"], "free") },
    ];
    let specs = BTreeMap::from([("edge".to_owned(), routes)]);
    let policies = policies();
    let routes = RouteSet::compile(&specs, |name| policies.get(name).is_none().then(|| name.to_owned()))
        .expect("the routes are right");
    policies.with_routes(routes)
}

fn daemon_at(door: impl FnOnce(&std::path::Path) -> ListenAddress) -> TestDaemon {
    TestDaemon::with(|options| {
        let directory = options.socket.parent().expect("it has a directory");
        options.envoy = Some(EnvoyOptions { address: door(directory), headers: Some(Style::Draft) });
        options.policies = Arc::new(ArcSwap::from_pointee(routed()));
    })
}

fn daemon() -> TestDaemon {
    daemon_at(|directory| ListenAddress::Path(directory.join("rls.sock")))
}

fn socket_of(daemon: &TestDaemon) -> PathBuf {
    match daemon.daemon().envoy().expect("it was asked for") {
        ListenAddress::Path(path) => path,
        ListenAddress::Address(address) => panic!("a path was asked for, not {address}"),
    }
}

fn client(daemon: &TestDaemon) -> Rls {
    Rls::connect(&daemon.daemon().envoy().expect("it was asked for"))
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn user(name: &str) -> RateLimitRequest {
    request(&[descriptor(&[("user", name)])])
}

fn overall(response: &RateLimitResponse) -> Code {
    Code::try_from(response.overall_code).expect("a known code")
}

/// Each descriptor's code and what is left.
fn each(response: &RateLimitResponse) -> Vec<(Code, u32)> {
    let one = |status: &rationd::serve::envoy::proto::DescriptorStatus| {
        (Code::try_from(status.code).expect("a known code"), status.limit_remaining)
    };
    response.statuses.iter().map(one).collect()
}

fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    response.response_headers_to_add.iter().find(|field| field.key == name).map(|field| field.value.as_str())
}

fn five_pass_and_the_sixth_does_not(daemon: &TestDaemon) {
    let mut rls = client(daemon);
    for left in (0..5).rev() {
        let passed = rls.ask(&user("k"));
        assert_eq!((overall(&passed), each(&passed)), (Code::Ok, vec![(Code::Ok, left)]));
        assert!(header(&passed, "ratelimit").unwrap().starts_with(&format!("\"5/1h fixed\";r={left};t=")));
        assert_eq!(header(&passed, "retry-after"), None);
        assert_eq!((told(&passed, "policy"), told(&passed, "reason")), ("api", "ok"));
    }
    let denied = rls.ask(&user("k"));
    assert_eq!((overall(&denied), each(&denied)), (Code::OverLimit, vec![(Code::OverLimit, 0)]));
    let status = &denied.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit(), limit.name.as_str()), (5, Unit::Hour, "api"));
    let wait = status.duration_until_reset.expect("a duration");
    assert!((1..=3_600).contains(&wait.seconds) && wait.nanos == 0, "{wait:?}");
    assert_eq!(header(&denied, "retry-after"), Some(wait.seconds.to_string().as_str()));
    assert_eq!((told(&denied, "reason"), told(&denied, "source")), ("rate", "store"));
    assert_eq!(told(&denied, "limit"), "5/1h fixed");
}

#[test]
fn over_a_unix_socket_five_pass_and_the_sixth_does_not() {
    let daemon = daemon();
    five_pass_and_the_sixth_does_not(&daemon);
    assert_eq!(daemon.client().ask("RATION.CHECK api k PEEK").split(' ').next(), Some("1"), "the key is the value");
}

#[test]
fn over_tcp_too() {
    let daemon = daemon_at(|_| ListenAddress::Address(([127, 0, 0, 1], 0).into()));
    five_pass_and_the_sixth_does_not(&daemon);
}

#[test]
fn hits_of_the_request_and_of_each_descriptor() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    assert_eq!(each(&rls.ask(&RateLimitRequest { hits_addend: 2, ..user("h") })), [(Code::Ok, 3)]);
    let own = |hits: u64, is_negative_hits| RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        is_negative_hits,
        ..descriptor(&[("user", "h")])
    };
    let asked = |hits, back| RateLimitRequest { hits_addend: 1, ..request(&[own(hits, back)]) };
    assert_eq!(each(&rls.ask(&asked(0, false))), [(Code::Ok, 3)], "a peek");
    assert_eq!(each(&rls.ask(&asked(4, false))), [(Code::OverLimit, 3)], "nothing is charged");
    assert_eq!(each(&rls.ask(&asked(3, false))), [(Code::Ok, 0)]);
    assert_eq!(each(&rls.ask(&asked(0, false))), [(Code::OverLimit, 0)], "not one more would pass");
    assert_eq!(each(&rls.ask(&asked(2, true))), [(Code::Ok, 2)], "given back");
    assert_eq!(each(&rls.ask(&asked(2, false))), [(Code::Ok, 0)]);
    assert_eq!(each(&rls.ask(&asked(9, true))), [(Code::Ok, 5)], "never above the limit");
    let refused = rls.refused(&asked(1 << 53, false));
    assert_eq!(refused, "InvalidArgument: hits_addend is 9007199254740992: at most 9007199254740991");
}

#[test]
fn a_policy_that_takes_nothing_back_says_so() {
    let kept = PolicySpec { limits: vec!["5/1h fixed".into()], refunds: Some(false), ..PolicySpec::default() };
    let policies = PolicySet::compile(&BTreeMap::from([("kept".to_owned(), kept)])).expect("it is right");
    let route = RouteSpec { patterns: vec!["user".into()], policy: Some("kept".into()), ..RouteSpec::default() };
    let routes = RouteSet::compile(&BTreeMap::from([("edge".to_owned(), vec![route])]), |_| None).expect("it is right");
    let daemon = TestDaemon::with(|options| {
        let directory = options.socket.parent().expect("it has a directory");
        options.envoy = Some(EnvoyOptions { address: ListenAddress::Path(directory.join("rls.sock")), headers: None });
        options.policies = Arc::new(ArcSwap::from_pointee(policies.with_routes(routes)));
    });
    let mut rls = client(&daemon);
    assert_eq!(each(&rls.ask(&user("k"))), [(Code::Ok, 4)]);
    let own = RateLimitDescriptor { is_negative_hits: true, ..descriptor(&[("user", "k")]) };
    let refused = rls.refused(&request(&[RateLimitDescriptor { hits_addend: Some(UInt64Value { value: 1 }), ..own }]));
    assert_eq!(refused, "PermissionDenied: policy \"kept\" takes nothing back (refunds = false)");
    assert_eq!(each(&rls.ask(&user("k"))), [(Code::Ok, 3)]);
}

#[test]
fn a_limit_that_envoy_sends_is_a_rule_of_its_own() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    let with = |count: u32, unit: Unit, entries: &[(&str, &str)]| {
        let limit = Some(RateLimitOverride { requests_per_unit: count, unit: unit.into() });
        request(&[RateLimitDescriptor { limit, ..descriptor(entries) }])
    };
    let sent = with(2, Unit::Day, &[("user", "o")]);
    let left: Vec<_> = (0..3).map(|_| each(&rls.ask(&sent))[0]).collect();
    assert_eq!(left, [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)]);
    assert_eq!(told(&rls.ask(&sent), "policy"), "envoy.limit");
    assert_eq!(each(&rls.ask(&user("o"))), [(Code::Ok, 4)], "the policy's own limit is untouched");
    assert_eq!(each(&rls.ask(&with(2, Unit::Day, &[("no", "route")]))), [(Code::Ok, 1)]);
    assert_eq!(overall(&rls.ask(&with(9, Unit::Day, &[("user", "evil")]))), Code::OverLimit, "blocked stays blocked");
    assert_eq!(overall(&rls.ask(&with(0, Unit::Day, &[("user", "p")]))), Code::OverLimit);
    let watched = with(1, Unit::Day, &[("watched", "w")]);
    assert_eq!([overall(&rls.ask(&watched)), overall(&rls.ask(&watched))], [Code::Ok, Code::Ok]);
    assert!(rls.refused(&with(2, Unit::Unknown, &[("user", "o")])).contains("has no unit"));
    let elsewhere = RateLimitRequest { domain: "other".into(), ..with(0, Unit::Day, &[("user", "o")]) };
    assert_eq!(overall(&rls.ask(&elsewhere)), Code::Ok, "of an unknown domain nothing is limited");
}

#[test]
fn what_no_route_fits_is_not_limited() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    for entries in [&[("path", "/")][..], &[("user", "k"), ("more", "x")], &[("user", "nobody")], &[]] {
        let free = rls.ask(&request(&[descriptor(entries)]));
        assert_eq!((overall(&free), each(&free)), (Code::Ok, vec![(Code::Ok, 0)]));
        assert!(free.response_headers_to_add.is_empty() && free.dynamic_metadata.is_none());
        assert!(free.statuses[0].current_limit.is_none());
    }
    let elsewhere = RateLimitRequest { domain: "other".into(), ..user("k") };
    assert_eq!(overall(&rls.ask(&elsewhere)), Code::Ok);
}

#[test]
fn several_descriptors_are_charged_all_or_nothing() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    let both = request(&[descriptor(&[("user", "a")]), descriptor(&[("none", "")]), descriptor(&[("user", "b")])]);
    assert_eq!(each(&rls.ask(&both)), [(Code::Ok, 4), (Code::Ok, 0), (Code::Ok, 4)]);
    assert_eq!(each(&rls.ask(&RateLimitRequest { hits_addend: 4, ..user("b") })), [(Code::Ok, 0)]);
    for _ in 0..10 {
        let denied = rls.ask(&both);
        assert_eq!(overall(&denied), Code::OverLimit);
        assert_eq!(each(&denied), [(Code::Ok, 4), (Code::Ok, 0), (Code::OverLimit, 0)], "nothing is charged");
        assert!(header(&denied, "retry-after").is_some(), "the one that denied tells");
    }
    let replaced = request(&[descriptor(&[("user", "b")]), descriptor(&[("user", "b"), ("plan", "gold")])]);
    let passed = rls.ask(&replaced);
    assert_eq!((overall(&passed), each(&passed)), (Code::Ok, vec![(Code::Ok, 0), (Code::Ok, u32::MAX)]));
}

#[test]
fn blocked_unlimited_and_watched_keys() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    let blocked = rls.ask(&user("evil"));
    assert_eq!((overall(&blocked), told(&blocked, "reason")), (Code::OverLimit, "blocked"));
    let unlimited = rls.ask(&request(&[descriptor(&[("free", "x")])]));
    assert_eq!((overall(&unlimited), each(&unlimited)), (Code::Ok, vec![(Code::Ok, u32::MAX)]));
    let watched = request(&[descriptor(&[("watched", "x")])]);
    assert_eq!(told(&rls.ask(&watched), "reason"), "ok");
    let shadow = rls.ask(&watched);
    assert_eq!((overall(&shadow), told(&shadow, "reason"), told(&shadow, "policy")), (Code::Ok, "shadow", "watched"));
}

#[test]
fn wrong_and_large_requests_are_refused_and_the_connection_goes_on() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    let no_domain = RateLimitRequest { domain: String::new(), ..user("k") };
    assert_eq!(rls.refused(&no_domain), "InvalidArgument: the domain is empty");
    assert_eq!(rls.refused(&request(&[])), "InvalidArgument: 0 descriptors: 1 to 64 were wanted");
    let many = request(&vec![descriptor(&[("user", "k")]); 65]);
    assert_eq!(rls.refused(&many), "InvalidArgument: 65 descriptors: 1 to 64 were wanted");
    let long = "x".repeat((64 << 10) + 1);
    assert_eq!(rls.refused(&user(&long)), "InvalidArgument: a key of 65537 bytes: 65536 at most");
    assert!(rls.refused(&user(&"x".repeat(200 << 10))).starts_with("OutOfRange: "), "more than a message may have");
    assert!(rls.refused_at("/envoy.service.ratelimit.v3.RateLimitService/Other").starts_with("Unimplemented: "));
    assert_eq!(each(&rls.ask(&user("k"))), [(Code::Ok, 4)], "nothing of it was charged");
}

#[test]
fn a_thousand_mutated_messages_are_answered_or_refused() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    let whole = RateLimitRequest { hits_addend: 3, ..request(&[descriptor(&[("user", "x"), ("plan", "y")])]) };
    let whole = prost::Message::encode_to_vec(&whole);
    let (mut dice, mut refused) = (0x2545_f491_4f6c_dd1d_u64, 0);
    for _ in 0..1_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + dice % 3 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (dice >> 33) as usize % bytes.len();
            match dice >> 62 {
                0 => bytes.truncate(at.max(1)),
                _ => bytes[at] = (dice >> 20) as u8,
            }
        }
        match rls.ask_raw(bytes) {
            Ok(response) => assert_ne!(overall(&response), Code::Unknown),
            Err(error) => {
                let known = [tonic::Code::Internal, tonic::Code::InvalidArgument];
                assert!(known.contains(&error.code()), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!((100..1_000).contains(&refused), "{refused} of 1,000 were refused");
    assert_eq!(overall(&rls.ask(&user("k"))), Code::Ok);
}

#[test]
fn what_is_no_http2_ends_that_connection_alone() {
    let daemon = daemon();
    let mut rls = client(&daemon);
    for noise in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"*1\r\n$4\r\nPING\r\n", &[0xff; 4096]] {
        let mut stream = std::os::unix::net::UnixStream::connect(socket_of(&daemon)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        // It may be closed before all is written.
        let _ = stream.write_all(noise);
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it hangs after {noise:?}");
    }
    // A frame that claims more than a frame may have, after a proper beginning.
    let mut stream = std::os::unix::net::UnixStream::connect(socket_of(&daemon)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    bytes.extend_from_slice(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01");
    stream.write_all(&bytes).expect("it is read");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.windows(4).any(|code| code == [0, 0, 0, 6]), "GOAWAY with FRAME_SIZE_ERROR: {rest:?}");
    assert_eq!(overall(&rls.ask(&user("k"))), Code::Ok);
}

#[test]
fn many_requests_at_once_on_one_connection_share_the_limit_exactly() {
    let daemon = daemon();
    let rls = client(&daemon);
    let passed = rls.ask_at_once(&user("m"), 600).iter().filter(|response| overall(response) == Code::Ok).count();
    assert_eq!(passed, 5);
}

#[test]
fn a_living_daemons_door_is_not_taken_and_its_file_goes_with_it() {
    let mut daemon = daemon();
    let path = socket_of(&daemon);
    let options = EnvoyOptions { address: ListenAddress::Path(path.clone()), headers: None };
    let error = rationd::serve::envoy::BoundListener::bind(
        &options,
        0o600,
        None,
        &mut rationd::serve::handed::Handed::default(),
    )
    .expect_err("somebody listens there");
    assert!(error.to_string().starts_with("a daemon already listens on"), "{error}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(path.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    let mut rls = client(&daemon);
    assert_eq!(overall(&rls.ask(&user("k"))), Code::Ok);
    let watch = Watch::start();
    daemon.stop();
    assert!(watch.elapsed() < Duration::from_millis(900), "an open connection holds nothing up: {:?}", watch.elapsed());
    assert!(!path.exists());
    assert!(rls.refused(&user("k")).starts_with("Unavailable: "), "the connection was closed");
}

#[test]
fn a_store_that_is_away_is_an_error_only_where_a_policy_says_so() {
    let route = |policy: &str| format!("[[descriptors.edge]]\nmatch = [\"{policy}\"]\npolicy = \"{policy}\"\n");
    let policy = |name: &str| {
        let shadow = name == "shadow";
        let loss = if shadow { "deny" } else { name };
        format!("[policy.{name}]\nlimits = [\"5/1h fixed\"]\non_store_loss = \"{loss}\"\nshadow = {shadow}\n")
    };
    let names = ["share", "allow", "deny", "shadow"];
    let policies: String = names.iter().map(|name| policy(name) + &route(name)).collect();
    // Nothing listens on port 1.
    let store = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    let blocked = "[policy.allow.override.evil]\nblocked = true\n";
    let daemon = Daemon::start(&format!("envoy = \"./rls.sock\"\n{store}{policies}{blocked}"));
    let mut rls = Rls::connect(&ListenAddress::Path(daemon.directory().join("rls.sock")));
    let asked = |names: &[&str]| request(&names.iter().map(|name| descriptor(&[(name, "k")])).collect::<Vec<_>>());
    let shared = rls.ask(&asked(&["share"]));
    assert_eq!(told(&shared, "source"), "share", "a node that never saw its store has none yet");
    assert_eq!(overall(&rls.ask(&asked(&["allow"]))), Code::Ok);
    assert_eq!(overall(&rls.ask(&asked(&["shadow"]))), Code::Ok);
    let refused = "Unavailable: the store is away, and policy \"deny\" lets nothing pass then";
    assert_eq!(rls.refused(&asked(&["allow", "deny"])), refused);
    let denied = rls.ask(&request(&[descriptor(&[("allow", "evil")]), descriptor(&[("deny", "k")])]));
    assert_eq!(overall(&denied), Code::OverLimit, "it must not pass, whatever the store would say");
}

#[test]
fn routes_change_with_a_reload() {
    let policy = "[policy.api]\nlimits = [\"1/1h fixed\"]\n";
    let daemon = Daemon::start(&format!("envoy = \"./rls.sock\"\n{policy}"));
    let mut rls = Rls::connect(&ListenAddress::Path(daemon.directory().join("rls.sock")));
    let two = |rls: &mut Rls| [overall(&rls.ask(&user("k"))), overall(&rls.ask(&user("k")))];
    assert_eq!(two(&mut rls), [Code::Ok, Code::Ok], "there are no routes");
    let text = std::fs::read_to_string(daemon.config()).expect("it is there");
    let route = "[[descriptors.edge]]\nmatch = [\"user\"]\npolicy = \"api\"\n";
    std::fs::write(daemon.config(), text + route).expect("it can be written");
    let told = format!("{:?}", daemon.ask("RATION.RELOAD"));
    assert_eq!(two(&mut rls), [Code::Ok, Code::OverLimit], "{told}");
    assert!(daemon.log().contains("listen.envoy without [descriptors]"), "it said so at the start");
}

const STORED: &str = "[policy.api]\nlimits = [\"7/30d fixed\"]\n[[descriptors.edge]]\nmatch = [\"user\"]\npolicy = \"api\"\n\
    [policy.spent]\nlimits = [\"1/30d fixed\"]\n[[descriptors.edge]]\nmatch = [\"spent\"]\npolicy = \"spent\"\n";

/// With a store at this address, which it waits for longer than a busy machine takes.
fn stored(address: &str) -> (Daemon, Rls) {
    let store = format!("[store]\nurl = \"redis://{address}\"\ntimeout = \"2s\"\n");
    let daemon = Daemon::start(&format!("envoy = \"./rls.sock\"\n{store}{STORED}"));
    let rls = Rls::connect(&ListenAddress::Path(daemon.directory().join("rls.sock")));
    (daemon, rls)
}

#[test]
fn nodes_share_a_limit_through_their_store() {
    let store = Server::plain();
    let (_one, mut first) = stored(&store.address());
    let (_two, mut second) = stored(&store.address());
    let passed = |rls: &mut Rls| (0..10).filter(|_| overall(&rls.ask(&user("k"))) == Code::Ok).count();
    let (one, two) = (passed(&mut first), passed(&mut second));
    assert!(one >= 1 && one + two <= 7, "{one} and {two}");
}

#[test]
fn what_envoy_does_not_wait_for_is_given_back_all_the_same() {
    let store = Server::plain();
    let proxy = Proxy::start(store.address().parse().expect("an address"));
    let (daemon, mut rls) = stored(&proxy.address().to_string());
    assert_eq!(overall(&rls.ask(&request(&[descriptor(&[("spent", "x")])]))), Code::Ok);
    proxy.set(Mode::DelayEvery(1, Duration::from_millis(60)));
    let names: Vec<String> = (0..12).map(|index| format!("u{index}")).collect();
    let answered = names.iter().filter(|name| {
        let both = request(&[descriptor(&[("user", name)]), descriptor(&[("spent", "x")])]);
        rls.give_up(&both, Duration::from_millis(15)).is_some()
    });
    assert!(answered.count() < 12, "some of them ask the store");
    proxy.set(Mode::Pass);
    wait_for("all of it is given back", 20, || {
        let left = |name: &String| daemon.ask(&format!("RATION.CHECK api {name} PEEK")).items()[2].clone();
        names.iter().all(|name| left(name) == Reply::Int(7)).then_some(())
    });
}

#[test]
fn connections_are_counted_and_bounded() {
    let daemon = TestDaemon::with(|options| {
        let directory = options.socket.parent().expect("it has a directory");
        options.envoy = Some(EnvoyOptions { address: ListenAddress::Path(directory.join("rls.sock")), headers: None });
        options.limits.connections = 1;
    });
    let mut rls = client(&daemon);
    assert_eq!(overall(&rls.ask(&user("k"))), Code::Ok);
    let mut second = std::os::unix::net::UnixStream::connect(socket_of(&daemon)).expect("it listens");
    second.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    assert_eq!(second.read(&mut [0; 64]).expect("a clean end"), 0);
    assert_eq!((daemon.daemon().stats().connections, daemon.daemon().stats().refused), (1, 1));
}
