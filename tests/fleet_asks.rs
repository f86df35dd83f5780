//! Asks and answers between the nodes of a fleet over real QUIC connections: who hears them, what is dropped, and that
//! nobody who asks can hurt the others.

use crate::support;

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use rationd::core::time::Micros;
use rationd::fleet::{AskTaker, Owning, PeerId, Reply};
use support::membership_suite::{Start, sees};
use support::peers::{Authority, FLEET, Peer, Stranger, runtime};
use support::poll::wait_until;

const ALPN: &str = "rationd/1/test";
/// An answer is awaited for as long as a test is.
const PATIENCE: Micros = Micros::from_secs(20);
const SOON: Duration = Duration::from_secs(20);
/// Asks of one peer that may be open: `OPEN` of src/fleet/ask_stream.rs.
const OPEN: usize = 1_024;

/// What a node does with an ask.
type Act = Box<dyn Fn(&[u8], Reply) + Send + Sync>;

/// A node that notes what it is asked, and what it is answered.
struct Taker {
    asked: Mutex<Vec<(PeerId, Vec<u8>)>>,
    answers: Mutex<mpsc::Sender<(PeerId, Vec<u8>)>>,
    act: Act,
}

impl AskTaker for Taker {
    fn handle_ask(&self, from: &PeerId, ask: &[u8], reply: Reply) {
        self.asked.lock().expect("nobody panicked").push((from.clone(), ask.to_vec()));
        (self.act)(ask, reply);
    }

    fn handle_answer(&self, from: &PeerId, answer: &[u8]) {
        let answers = self.answers.lock().expect("nobody panicked");
        answers.send((from.clone(), answer.to_vec())).expect("the test listens");
    }
}

impl Taker {
    fn asked(&self) -> Vec<Vec<u8>> {
        self.asked.lock().expect("nobody panicked").iter().map(|(_, ask)| ask.clone()).collect()
    }
}

/// A node that asks and is asked.
struct Asker {
    peer: Peer,
    taker: Arc<Taker>,
    answers: mpsc::Receiver<(PeerId, Vec<u8>)>,
}

impl Asker {
    fn start(fleet: &Authority, start: Start<'_>, act: impl Fn(&[u8], Reply) + Send + Sync + 'static) -> Self {
        let (send, answers) = mpsc::channel();
        let taker = Arc::new(Taker { asked: Mutex::default(), answers: Mutex::new(send), act: Box::new(act) });
        let peer = fleet.start(Start { owning: Owning::Auto, ..start });
        let dynamic: Arc<dyn AskTaker> = taker.clone();
        peer.fleet.hand_asks_to(&dynamic);
        Self { peer, taker, answers }
    }

    fn asks(&self, to: &Self, ask: &[u8]) -> bool {
        self.peer.fleet.ask(to.peer.fleet.own(), Bytes::copy_from_slice(ask), PATIENCE)
    }

    fn next_answer(&self) -> Vec<u8> {
        self.answers.recv_timeout(SOON).expect("an answer in time").1
    }
}

/// Answers with what was asked, and an exclamation mark.
fn echo(ask: &[u8], reply: Reply) {
    reply.send([ask, b"!"].concat());
}

/// Two nodes that see each other.
fn two(act: impl Fn(&[u8], Reply) + Send + Sync + 'static) -> (Asker, Asker) {
    let fleet = Authority::new(FLEET);
    let a = Asker::start(&fleet, Start::new("a", &[]), echo);
    let b = Asker::start(&fleet, Start::new("b", &[a.peer.fleet.address()]), act);
    for node in [&a, &b] {
        sees(&node.peer, "a b");
    }
    (a, b)
}

#[test]
fn each_ask_is_answered_once_under_the_names_of_both() {
    let (a, b) = two(echo);
    for number in 0..200_u8 {
        assert!(a.asks(&b, &[number]) && b.asks(&a, &[number, 1]));
    }
    let mut at_a: Vec<_> = (0..200).map(|_| a.next_answer()).collect();
    let mut at_b: Vec<_> = (0..200).map(|_| b.next_answer()).collect();
    at_a.sort();
    at_b.sort();
    assert_eq!(at_a, (0..200).map(|number| vec![number, b'!']).collect::<Vec<_>>());
    assert_eq!(at_b, (0..200).map(|number| vec![number, 1, b'!']).collect::<Vec<_>>());
    let from = b.taker.asked.lock().expect("nobody panicked")[0].0.clone();
    assert_eq!(from, *a.peer.fleet.own());
    assert!(a.answers.try_recv().is_err() && b.answers.try_recv().is_err(), "one answer each");
}

#[test]
fn answers_come_in_any_order_or_not_at_all() {
    let kept = Mutex::new(Vec::new());
    let (a, b) = two(move |ask, reply| match ask {
        b"never" => drop(reply),
        b"later" => kept.lock().expect("nobody panicked").push(reply),
        _ => {
            reply.send(b"now".to_vec());
            kept.lock().expect("nobody panicked").drain(..).for_each(|reply: Reply| reply.send(b"then".to_vec()));
        }
    });
    for ask in [&b"never"[..], b"later", b"at once"] {
        assert!(a.asks(&b, ask));
    }
    assert_eq!([a.next_answer(), a.next_answer()], [b"now".to_vec(), b"then".to_vec()]);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_sent() {
    let (a, b) = two(echo);
    let late = Bytes::from_static(b"late");
    assert!(a.peer.fleet.ask(b.peer.fleet.own(), late, Micros(0)));
    assert!(a.asks(&b, b"in time"));
    assert_eq!(a.next_answer(), b"in time!");
    assert_eq!(b.taker.asked(), [b"in time".to_vec()]);
}

#[test]
fn who_is_no_member_is_not_asked() {
    let (a, _b) = two(echo);
    let nobody = PeerId { name: "nobody".into(), incarnation: 1 };
    for to in [&nobody, a.peer.fleet.own()] {
        assert!(!a.peer.fleet.ask(to, Bytes::from_static(b"x"), PATIENCE));
    }
}

#[test]
fn a_peer_that_takes_no_asks_loses_nothing_else() {
    let fleet = Authority::new(FLEET);
    let a = Asker::start(&fleet, Start::new("a", &[]), echo);
    let mut b = fleet.start(Start::new("b", &[a.peer.fleet.address()]));
    sees(&a.peer, "a b");
    sees(&b, "a b");
    assert!(a.peer.fleet.ask(b.fleet.own(), Bytes::from_static(b"x"), PATIENCE));
    wait_until("it is given up", 20, || a.peer.fleet.stats().dropped_out > 0);
    assert!(a.peer.fleet.send(b.fleet.own(), Bytes::from_static(b"usage")));
    assert_eq!(b.receive().frame, "usage");
}

#[test]
fn members_say_whether_they_own_keys() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start { owning: Owning::Auto, ..Start::new("a", &[]) });
    let seeds = [a.fleet.address()];
    let _b = fleet.start(Start { owning: Owning::Always, ..Start::new("b", &seeds) });
    let c = fleet.start(Start::new("c", &seeds));
    for node in [&a, &c] {
        sees(node, "a b c");
        let members = node.fleet.members().borrow().clone();
        let owning: Vec<_> = members.iter().map(|member| member.owning).collect();
        assert_eq!(owning, [Owning::Auto, Owning::Always, Owning::Never]);
    }
}

#[test]
fn a_peer_that_restarts_is_asked_again() {
    let fleet = Authority::new(FLEET);
    let a = Asker::start(&fleet, Start::new("a", &[]), echo);
    let seeds = [a.peer.fleet.address()];
    let mut b = Asker::start(&fleet, Start::new("b", &seeds), echo);
    sees(&a.peer, "a b");
    assert!(a.asks(&b, b"1"));
    assert_eq!(a.next_answer(), b"1!");
    b.peer.stop();
    let again = Asker::start(&fleet, Start { incarnation: 2_000, ..Start::new("b", &seeds) }, echo);
    let members = a.peer.fleet.members();
    wait_until("its new life is seen", 20, || members.borrow().get(again.peer.fleet.own()).is_some());
    assert!(a.asks(&again, b"2"));
    assert_eq!(a.next_answer(), b"2!");
}

/// A peer with the right certificate, and a stream on which it asks.
async fn stranger(fleet: &Authority, to: &Asker, begins: &[u8]) -> (Stranger, quinn::SendStream, quinn::RecvStream) {
    let mallory = Stranger::connect(&fleet.node("mallory"), ALPN, to.peer.fleet.address()).await;
    let mallory = mallory.expect("it has a certificate");
    mallory.hello("mallory").await;
    let (mut asks, answers) = mallory.connection.open_bi().await.expect("it may open one");
    asks.write_all(begins).await.expect("it is taken");
    (mallory, asks, answers)
}

#[test]
fn garbage_ends_a_stream_and_not_its_connection() {
    let fleet = Authority::new(FLEET);
    let a = Asker::start(&fleet, Start::new("a", &[]), echo);
    runtime().block_on(async {
        for (begins, count) in [(&[3, 1, 0, b'x', 255, 255][..], 1), (&[9, 1, 0, b'x'], 2)] {
            let (mallory, _asks, mut answers) = stranger(&fleet, &a, begins).await;
            let ended = async { while answers.read_chunk(64, true).await.is_ok_and(|chunk| chunk.is_some()) {} };
            tokio::time::timeout(SOON, ended).await.expect("it ends");
            wait_until("it is counted", 20, || {
                let stats = a.peer.fleet.stats();
                stats.oversized + stats.malformed == count
            });
            assert!(mallory.connection.close_reason().is_none(), "the connection is still there");
        }
    });
    assert_eq!(a.taker.asked(), [b"x".to_vec()], "what came before it counts");
}

#[test]
fn of_one_peer_a_bounded_number_of_asks_is_open() {
    let fleet = Authority::new(FLEET);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let replies = kept.clone();
    let a = Asker::start(&fleet, Start::new("a", &[]), move |_, reply| {
        replies.lock().expect("nobody panicked").push(reply);
    });
    runtime().block_on(async {
        let (_mallory, mut asks, mut answers) = stranger(&fleet, &a, &[3]).await;
        for _ in 0..OPEN + 100 {
            asks.write_all(&[1, 0, b'x']).await.expect("it is taken");
        }
        wait_until("the rest is dropped", 20, || a.peer.fleet.stats().dropped_in == 100);
        assert_eq!(a.taker.asked().len(), OPEN);
        kept.lock().expect("nobody panicked").drain(..).for_each(|reply: Reply| reply.send(b"y".to_vec()));
        let mut all = vec![0; 3 * OPEN];
        tokio::time::timeout(SOON, answers.read_exact(&mut all)).await.expect("in time").expect("all of it");
        asks.write_all(&[1, 0, b'x']).await.expect("it is taken");
        wait_until("there is room again", 20, || a.taker.asked().len() == OPEN + 1);
    });
}
