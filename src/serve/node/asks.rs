//! Asks between the shards and peers, in both directions. Part of `node.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, Locked, Node, Outgoing};
use crate::core::ask::{Answer, Refusal, Terms};
use crate::core::key::Digest;
use crate::core::owners::{Candidate, KeyOwner, OwnerName};
use crate::core::shard::{AskOutcome, Request};
use crate::core::time::Instant;
use crate::core::usage::PeerIndex;
use crate::serve::peer_reply::PeerReply;
use crate::store::turns::Asker;

/// Keys that are counted under one lock of a shard, whose checks wait meanwhile.
const COUNTED: usize = 1_024;

impl Node {
    /// From now on these peers may own keys, and this node under the name `own`.
    pub fn handle_owners(&self, own: OwnerName, candidates: &[Candidate]) {
        self.each_shard(|shard| shard.handle_owners(own, candidates));
    }

    /// The name of the node that owns the key of `request`, as this one sees it; `None` where nodes ask no peers for it.
    #[must_use]
    pub fn owner(&self, now: Instant, request: &Request<'_>) -> Option<Arc<str>> {
        let lending = self.lending.get()?;
        let owner = match &self.cell(request.digest).lock().engine {
            Engine::Embedded(_) => None,
            Engine::Leasing(leasing) => leasing.shard.owner(now, request),
        };
        match owner? {
            KeyOwner::This => Some(lending.own().clone()),
            KeyOwner::Peer(peer) => lending.name_of(peer),
        }
    }

    /// Of the keys that this node has leased or asked for, how many each node owns by its name, as this one sees it; empty
    /// where nodes ask no peers.
    #[must_use]
    pub fn count_owned(&self, now: Instant) -> BTreeMap<Arc<str>, u64> {
        let Some(lending) = self.lending.get() else { return BTreeMap::new() };
        let mut counts: BTreeMap<Option<PeerIndex>, u64> = BTreeMap::new();
        for cell in &self.cells {
            let mut from = Some(0);
            while let Some(first) = from {
                let cell = cell.lock();
                let Engine::Leasing(leasing) = &cell.engine else { break };
                from = leasing.shard.count_owned(now, first, COUNTED, |owner| {
                    let peer = if let KeyOwner::Peer(peer) = owner { Some(peer) } else { None };
                    *counts.entry(peer).or_default() += 1;
                });
            }
        }
        let name = |peer: Option<PeerIndex>| peer.map_or(Some(lending.own().clone()), |peer| lending.name_of(peer));
        counts.into_iter().filter_map(|(peer, count)| Some((name(peer)?, count))).collect()
    }

    /// A peer asks for tokens of a key, and is answered by `reply`: at once, or in the time for which it waits. The caller
    /// must [`Self::flush`] afterwards.
    pub fn handle_ask(&self, now: Instant, request: Request<'_>, terms: &Terms, reply: PeerReply, out: &mut Outgoing) {
        let cell = self.cell(request.digest);
        let Locked { engine, watched } = &mut *cell.lock();
        // The embedded store counts for this node alone, so there is nothing to lend.
        let Engine::Leasing(leasing) = engine else { return out.answers.push((reply, Err(Refusal::NoStore))) };
        match leasing.shard.handle_ask(now, request, terms) {
            AskOutcome::Answered(answer) => out.answers.push((reply, answer)),
            AskOutcome::Parked(ticket) => drop(leasing.asked.insert(ticket, reply)),
        }
        self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
    }

    /// Takes a peer's answer to the ask of that id. The caller must [`Self::flush`] afterwards.
    pub fn handle_answer(&self, now: Instant, digest: Digest, id: u64, answer: &Answer, out: &mut Outgoing) {
        let cell = self.cell(digest);
        if let Locked { engine: Engine::Leasing(leasing), watched } = &mut *cell.lock() {
            leasing.shard.handle_answer(now, digest, id, answer);
            self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
        }
    }
}
