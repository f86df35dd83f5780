//! The baselines of the comparison table: other ways to limit a fleet, as small policies that send the same calls to
//! the same store in the same world.
//!
//! They lack batches of the right size, refills in advance, a line that one call serves, and shares while the store
//! is away; the table shows what each of these is worth. Their tokens are bound to windows by the core's own `Lease`,
//! so that none is cheap by being wrong.

mod leasing;
mod split;

pub use self::leasing::Leasing;
pub use self::split::Split;
