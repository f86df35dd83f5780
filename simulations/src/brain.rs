//! What decides in a daemon of each kind: the shipped core, several of it, or a baseline.

use rationd::core::shard::Shard;

use crate::baseline::{Leasing, Split};
use crate::limiter::{Limiter, Start};
use crate::plan::Brain;
use crate::shards::Shards;

/// The decider of that kind.
#[must_use]
pub fn limiter(brain: Brain, start: Start) -> Box<dyn Limiter> {
    match brain {
        Brain::Rationd if start.shards > 1 => Box::new(Shards::new(&start)),
        Brain::Rationd => Box::new(Shard::new(start.settings, start.seed, start.first_id, 1, start.clock)),
        Brain::Split => Box::new(Split::new(start.clock)),
        _ => Box::new(Leasing::new(brain, &start)),
    }
}
