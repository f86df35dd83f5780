//! Looks between the nodes of a fleet over real QUIC connections: who answers, what is refused, and that nobody who looks in a
//! loop costs the others much.

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{LONGEST_ANSWER, LookTaker, Owning, PeerId, Show, Unseen};
use support::clock::Watch;
use support::membership_suite::{Node, Start, sees};
use support::peers::{Authority, FLEET, Peer, Stranger, runtime};

const ALPN: &str = "rationd/1/test";
const PATIENCE: Duration = Duration::from_secs(20);
/// `LOOK` of src/fleet/frame.rs.
const LOOK: u8 = 4;

/// Notes who looks, and does something with it.
struct Taker {
    looks: Mutex<Vec<(PeerId, Vec<u8>)>>,
    act: fn(&[u8], Show),
}

impl LookTaker for Taker {
    fn handle_look(&self, from: &PeerId, question: &[u8], show: Show) {
        self.looks.lock().expect("nobody panicked").push((from.clone(), question.to_vec()));
        (self.act)(question, show);
    }
}

/// A node that answers looks.
struct Shown {
    peer: Peer,
    taker: Arc<Taker>,
    _kept: Arc<dyn LookTaker>,
}

impl Shown {
    fn start(fleet: &Authority, start: Start<'_>, act: fn(&[u8], Show)) -> Self {
        let taker = Arc::new(Taker { looks: Mutex::default(), act });
        let kept: Arc<dyn LookTaker> = taker.clone();
        let peer = fleet.start(start);
        peer.fleet.show(&kept);
        Self { peer, taker, _kept: kept }
    }

    fn looks_at(&self, to: &Peer, question: &[u8]) -> Result<Bytes, Unseen> {
        self.peer.runtime().block_on(self.peer.fleet.look(to.fleet.own(), question, PATIENCE))
    }

    fn looks(&self) -> usize {
        self.taker.looks.lock().expect("nobody panicked").len()
    }
}

/// Answers with what was asked, and an exclamation mark.
fn echo(question: &[u8], show: Show) {
    show.send([question, b"!"].concat().into());
}

/// Two nodes that see each other.
fn two(fleet: &Authority, owning: Owning, act: fn(&[u8], Show)) -> (Shown, Shown) {
    let a = Shown::start(fleet, Start { owning, ..Start::new("a", &[]) }, echo);
    let b = Shown::start(fleet, Start { owning, ..Start::new("b", &[a.peer.fleet.address()]) }, act);
    for node in [&a, &b] {
        sees(&node.peer, "a b");
    }
    (a, b)
}

async fn stranger(fleet: &Authority, to: &Peer) -> Stranger {
    let mallory =
        Stranger::connect(&fleet.node("mallory"), ALPN, to.fleet.address()).await.expect("it has a certificate");
    mallory.hello("mallory").await;
    mallory
}

#[test]
fn each_look_is_answered_under_the_names_of_both() {
    // Whether nodes ask each other for tokens or not.
    for owning in [Owning::Never, Owning::Auto] {
        let (a, b) = two(&Authority::new(FLEET), owning, echo);
        assert_eq!(a.looks_at(&b.peer, b"who"), Ok("who!".into()));
        assert_eq!(b.looks_at(&a.peer, b""), Ok("!".into()));
        let seen = b.taker.looks.lock().expect("nobody panicked").clone();
        assert_eq!(seen, [(a.peer.fleet.own().clone(), b"who".to_vec())]);
    }
}

#[test]
fn an_answer_is_as_long_as_it_may_be_or_none() {
    fn as_long_as_asked(question: &[u8], show: Show) {
        let more = if question == b"more" { 1 } else { 0 };
        show.send(vec![7; LONGEST_ANSWER + more].into());
    }
    let (a, b) = two(&Authority::new(FLEET), Owning::Never, as_long_as_asked);
    assert_eq!(a.looks_at(&b.peer, b"most").map(|shown| shown.len()), Ok(LONGEST_ANSWER));
    assert_eq!(a.looks_at(&b.peer, b"more"), Err(Unseen::Refused));
    assert_eq!(b.looks_at(&a.peer, &[7; 64]).map(|shown| shown.len()), Ok(65));
    assert_eq!(b.looks_at(&a.peer, &[7; 65]), Err(Unseen::Refused));
    assert_eq!(a.peer.fleet.stats().oversized, 1);
}

#[test]
fn who_does_not_answer_is_told_of() {
    let fleet = Authority::new(FLEET);
    let a = Shown::start(&fleet, Start::new("a", &[]), echo);
    let silent = fleet.start(Start::new("b", &[a.peer.fleet.address()]));
    sees(&a.peer, "a b");
    sees(&silent, "a b");
    assert_eq!(a.looks_at(&silent, b"x"), Err(Unseen::Refused), "nobody there takes looks");
    let nobody = PeerId { name: "c".into(), incarnation: 1 };
    let looked = a.peer.runtime().block_on(a.peer.fleet.look(&nobody, b"x", PATIENCE));
    assert_eq!(looked, Err(Unseen::Gone));
    assert_eq!(a.looks_at(&a.peer, b"x"), Err(Unseen::Gone), "a node does not look at itself");
}

/// One connection is answered five times a second, and others meanwhile as ever.
#[test]
fn a_flood_of_looks_waits_for_itself() {
    let fleet = Authority::new(FLEET);
    let (a, b) = two(&fleet, Owning::Never, echo);
    let runtime = runtime();
    let mallory = runtime.block_on(stranger(&fleet, &a.peer));
    let connection = mallory.connection.clone();
    let flood = runtime.spawn(async move {
        let mut answered = 0_u32;
        let mut looking = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let connection = connection.clone();
            looking.spawn(async move {
                let mut answered = 0_u32;
                let watch = Watch::start();
                while watch.elapsed() < Duration::from_secs(3) {
                    let Ok((mut asks, mut answer)) = connection.open_bi().await else { return answered };
                    let _ = asks.write_all(&[LOOK, b'm']).await;
                    let _ = asks.finish();
                    answered += u32::from(answer.read_to_end(100).await.is_ok());
                }
                answered
            });
        }
        while let Some(one) = looking.join_next().await {
            answered += one.expect("it does not panic");
        }
        answered
    });
    let watch = Watch::start();
    for _ in 0..5 {
        assert_eq!(b.looks_at(&a.peer, b"b"), Ok("b!".into()));
    }
    let took = watch.elapsed();
    let answered = runtime.block_on(flood).expect("it does not panic");
    assert!(took < Duration::from_secs(3), "five looks took {took:?}");
    // Three seconds, and the two of each end.
    assert!((5..=27).contains(&answered), "{answered} were answered");
    assert_eq!(a.looks(), answered as usize + 5, "what is not answered is not asked for");
}

#[test]
fn streams_of_garbage_are_refused_and_cost_nobody_else_anything() {
    let fleet = Authority::new(FLEET);
    let (a, b) = two(&fleet, Owning::Never, echo);
    let runtime = runtime();
    runtime.block_on(async {
        let mallory = stranger(&fleet, &a.peer).await;
        // Of a channel of later versions, an ask where none is taken, more than a question may have, and one without an end.
        for (bytes, ends) in
            [(vec![9, 1, 2], true), (vec![3, 1, 0, 7], true), (vec![LOOK; 4_096], true), (vec![LOOK, 1], false)]
        {
            let (mut asks, mut answer) = mallory.connection.open_bi().await.expect("there is room");
            let _ = asks.write_all(&bytes).await;
            if ends {
                let _ = asks.finish();
            }
            let answered = answer.read_to_end(100).await;
            assert!(answered.is_err(), "{bytes:?}: {answered:?}");
        }
    });
    assert_eq!(a.looks(), 0);
    let stats = a.peer.fleet.stats();
    assert_eq!((stats.malformed, stats.oversized, stats.dropped_in), (1, 1, 3), "{stats:?}");
    assert_eq!(b.looks_at(&a.peer, b"b"), Ok("b!".into()));
}
