//! Streams on which a peer wants an answer: their first byte says whether they carry asks or a look.

use std::sync::Arc;

use quinn::{RecvStream, SendStream};
use tokio::task::JoinSet;

use super::ask_stream::{self, AskTakerCell};
use super::frame::Channel;
use super::link::{Closing, Link};
use super::look::{self, Looks};
use super::stats::Counters;

/// The two that answer the peers of a node.
#[derive(Clone, Debug)]
pub(crate) struct Answerers {
    /// `None` where this node takes no part in asks.
    pub(crate) asks: Option<Arc<AskTakerCell>>,
    pub(crate) looks: Arc<Looks>,
}

/// Answers a peer until the connection ends.
pub(crate) async fn answer(link: Arc<Link>, answerers: Answerers, counters: Arc<Counters>) {
    // Bounded by the number of streams that the peer may open.
    let mut answering = JoinSet::new();
    loop {
        tokio::select! {
            stream = link.connection.accept_bi() => match stream {
                Ok(stream) => {
                    answering.spawn(answer_stream(link.clone(), answerers.clone(), counters.clone(), stream));
                }
                Err(_) => return,
            },
            Some(_) = answering.join_next() => {}
        }
    }
}

async fn answer_stream(
    link: Arc<Link>,
    answerers: Answerers,
    counters: Arc<Counters>,
    (mut answers, mut asked): (SendStream, RecvStream),
) {
    let mut channel = [0];
    if asked.read_exact(&mut channel).await.is_err() {
        return;
    }
    let lost = match (channel[0], answerers.asks) {
        (channel, Some(taker)) if channel == Channel::Ask as u8 => {
            return ask_stream::serve(link, taker, counters, answers, asked).await;
        }
        (channel, _) if channel == Channel::Look as u8 => {
            return look::answer(&link, &answerers.looks, &counters, answers, asked).await;
        }
        // The peer has not learned yet that this node takes no asks.
        (channel, None) if channel == Channel::Ask as u8 => &counters.dropped_in,
        // A later version may have streams that this one does not know.
        _ => &counters.malformed,
    };
    lost.add(1);
    // Fails when the peer has already closed its side, which is what this is for.
    let _ = answers.reset(Closing::Refused.code());
    let _ = asked.stop(Closing::Refused.code());
}
