//! stub
use crate::limiter::Limiter;
use crate::plan::Brain;
use rationd::core::shard::Settings;
use rationd::core::time::{Instant, Timestamp};
pub fn new(_b: Brain, _s: Settings, _id: u64, _c: (Instant, Timestamp)) -> Box<dyn Limiter> {
    todo!()
}
