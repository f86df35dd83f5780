//! The baselines of the comparison table: how others limit a fleet, as small policies that ask the
//! same store by the same calls and live in the same world.
//!
//! What they lack is what the table shows the price of: batches that fit, refills ahead of need, a
//! line that is served by one call, shares while the store is away. What they hold is bound to its
//! window by the core's own `Lease`, so that none is cheap by being wrong.

mod leasing;
mod split;

pub use self::leasing::Leasing;
pub use self::split::Split;
