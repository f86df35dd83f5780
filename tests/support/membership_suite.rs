//! What every membership does, whatever carries its gossip: one suite over memory and over QUIC.
//!
//! Nothing sleeps: each step awaits a change of the live set, with a bound that only a failure reaches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{MemberState, Members, Owning, PeerId};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;

use super::clock::Watch;

/// Longest wait for what should take a second, on a machine with much else to do.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How a node is to be started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub name: &'a str,
    pub incarnation: u64,
    /// `None`: anywhere.
    pub at: Option<SocketAddr>,
    pub seeds: &'a [SocketAddr],
    pub owning: Owning,
}

impl<'a> Start<'a> {
    pub fn new(name: &'a str, seeds: &'a [SocketAddr]) -> Self {
        Self { name, incarnation: 1_000, at: None, seeds, owning: Owning::Never }
    }
}

/// One place in which nodes can meet.
pub trait World {
    fn start(&self, start: Start<'_>) -> Box<dyn Node>;

    /// Sends gossip as a member of the fleet called `mallory` would, and returns when it is sent.
    fn gossip(&self, to: &dyn Node, messages: &[Bytes]);
}

/// A running node.
pub trait Node {
    fn runtime(&self) -> &Runtime;
    fn own(&self) -> PeerId;
    fn address(&self) -> SocketAddr;
    fn members(&self) -> watch::Receiver<Arc<Members>>;
    fn malformed(&self) -> u64;
    /// Leaves in good order.
    fn leave(&self);
    /// Ends as a crash does: without a word.
    fn kill(self: Box<Self>);
}

/// Waits until the live set is as wanted.
pub fn wait(node: &dyn Node, what: &str, holds: impl FnMut(&Arc<Members>) -> bool) {
    wait_for(node, what, PATIENCE, holds);
}

fn wait_for(node: &dyn Node, what: &str, bound: Duration, holds: impl FnMut(&Arc<Members>) -> bool) {
    let mut members = node.members();
    let waited = node.runtime().block_on(async { timeout(bound, members.wait_for(holds)).await.is_ok() });
    assert!(waited, "{}: after {bound:?} still not: {what}; it sees {}", node.own(), show(&members.borrow()));
}

pub fn show(members: &Members) -> String {
    let each = members.iter().map(|member| match member.state {
        MemberState::Up => member.id.name.to_string(),
        MemberState::Leaving => format!("{} (leaving)", member.id.name),
    });
    each.collect::<Vec<_>>().join(" ")
}

/// Waits until a node sees exactly these names, up.
pub fn sees(node: &dyn Node, names: &str) {
    wait(node, &format!("it sees {names}"), |members| show(members) == names);
}

/// Runs the whole suite.
pub fn run(world: &dyn World) {
    for (name, behaviour) in BEHAVIOURS {
        println!("behaviour: {name}");
        behaviour(world);
    }
}

type Behaviour = fn(&dyn World);

const BEHAVIOURS: &[(&str, Behaviour)] = &[
    ("nodes see each other through one seed, soon", see_each_other),
    ("a seed that appears later is found", finds_a_late_seed),
    ("a killed node leaves the live set within ten seconds", gives_up_the_dead),
    ("a leaving node is gone at once", lets_go),
    ("a restarted node is seen in its new life alone", sees_a_new_life),
    ("garbage changes nothing", survives_garbage),
];

fn see_each_other(world: &dyn World) {
    let a = world.start(Start::new("a", &[]));
    let watch = Watch::start();
    let b = world.start(Start::new("b", &[a.address()]));
    let c = world.start(Start::new("c", &[a.address()]));
    for node in [&a, &b, &c] {
        sees(&**node, "a b c");
    }
    println!("  all three saw each other after {} ms", watch.elapsed().as_millis());
    let members = a.members().borrow().clone();
    let seen = members.get(&b.own()).expect("it is seen");
    assert_eq!((seen.address, seen.version.as_str()), (b.address(), env!("CARGO_PKG_VERSION")));
}

fn finds_a_late_seed(world: &dyn World) {
    let late = world.start(Start::new("late", &[]));
    let address = late.address();
    late.kill();
    let early = world.start(Start::new("early", &[address]));
    let late = world.start(Start { incarnation: 2_000, at: Some(address), ..Start::new("late", &[]) });
    for node in [&early, &late] {
        sees(&**node, "early late");
    }
}

fn gives_up_the_dead(world: &dyn World) {
    let a = world.start(Start::new("a", &[]));
    let b = world.start(Start::new("b", &[a.address()]));
    let c = world.start(Start::new("c", &[a.address()]));
    for node in [&a, &b, &c] {
        sees(&**node, "a b c");
    }
    let watch = Watch::start();
    b.kill();
    for node in [&a, &c] {
        wait_for(&**node, "it has given b up", Duration::from_secs(10), |members| show(members) == "a c");
    }
    println!("  the dead node was given up after {} ms", watch.elapsed().as_millis());
}

/// A node that leaves is counted no more as soon as it has gone, and before that it is seen leaving.
///
/// It is leaving for two rounds only, and members are published once a round: who is stopped by a busy machine for
/// as long as a round misses it. One departure of five has to be seen.
fn lets_go(world: &dyn World) {
    let a = world.start(Start::new("a", &[]));
    let seeds = [a.address()];
    let was_seen_leaving = (1..=5).any(|life| {
        let b = world.start(Start { incarnation: life * 1_000, ..Start::new("b", &seeds) });
        // Who does not know anybody yet has nobody to tell.
        sees(&*a, "a b");
        sees(&*b, "a b");
        let mut seen = a.members();
        let leaving = a.runtime().spawn(async move {
            let parted = seen.wait_for(|members| show(members) != "a b").await;
            parted.is_ok_and(|members| show(&members) == "a b (leaving)")
        });
        b.leave();
        let watch = Watch::start();
        sees(&*a, "a");
        assert!(
            watch.elapsed() < Duration::from_secs(2),
            "it was given up, not let go: {} ms",
            watch.elapsed().as_millis()
        );
        a.runtime().block_on(leaving).expect("it does not panic")
    });
    assert!(was_seen_leaving, "none of five departures was seen before it was over");
}

fn sees_a_new_life(world: &dyn World) {
    let a = world.start(Start::new("a", &[]));
    let b = world.start(Start::new("b", &[a.address()]));
    sees(&*a, "a b");
    let at = b.address();
    b.kill();
    let watch = Watch::start();
    let seeds = [a.address()];
    let again = world.start(Start { incarnation: 2_000, at: Some(at), ..Start::new("b", &seeds) });
    let lives = |members: &Members| members.iter().map(|member| member.id.to_string()).collect::<Vec<_>>().join(" ");
    wait(&*a, "the new life of b alone", |members| lives(members) == "a@1000 b@2000");
    wait(&*again, "both", |members| lives(members) == "a@1000 b@2000");
    println!("  the new life was seen after {} ms", watch.elapsed().as_millis());
}

fn survives_garbage(world: &dyn World) {
    let a = world.start(Start::new("a", &[]));
    let b = world.start(Start::new("b", &[a.address()]));
    sees(&*a, "a b");
    let garbage: Vec<_> = (0..8).map(|seed| noise(seed, 65_535)).collect();
    let before = a.members().borrow().clone();
    let malformed = a.malformed();
    for round in 1..=4 {
        world.gossip(&*a, &garbage);
        super::poll::wait_until("the garbage has come", 20, || a.malformed() >= malformed + 8 * round);
    }
    assert_eq!(*before, **a.members().borrow());
    // It still gossips: a newcomer is seen.
    let c = world.start(Start::new("c", &[a.address()]));
    for node in [&a, &b, &c] {
        sees(&**node, "a b c");
    }
}

/// Bytes that look like a message for as long as they can, and then like nothing.
fn noise(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(len)
    .collect();
    let heads: [&[u8]; 4] = [b"", b"\x53\xb0\0\x02\x01\x10\0", b"\x53\xb0\0\0\xff\xff", b"\x53\xb0\0\x02\x02\xff\xff"];
    let head = heads[(seed % 4) as usize];
    bytes[..head.len()].copy_from_slice(head);
    bytes.into()
}
