//! How near windows and buckets came to their bounds, and how often they exceeded them: windows relative to their
//! count, and buckets relative to their burst. For buckets, all intervals T are covered at once: a bucket that is
//! charged with everything admitted never lacks more than `burst` exactly if no interval has more than `burst + rate *
//! T`. Called by the books.

/// Thousandths of a percent of a bound that is just reached.
pub(super) const WHOLE: u64 = 100_000;

/// The fullest window and the emptiest bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    /// Windows that were asked about.
    pub(super) windows: u64,
    /// Those that admitted more than their limit.
    pub(super) windows_over: u64,
    /// The most that a window admitted, in thousandths of a percent of its limit.
    pub(super) window: u64,
    /// The most that a bucket lacked, in thousandths of a percent of its burst.
    pub(super) burst: u64,
    /// How often a bucket went below empty.
    pub(super) bursts_over: u64,
}

impl Peaks {
    /// A window that admitted `spent` of `count`.
    pub(super) fn see_window(&mut self, spent: u128, count: u64) {
        self.windows += 1;
        self.windows_over += u64::from(spent > u128::from(count));
        self.window = self.window.max(part(spent, u128::from(count)));
    }

    /// A bucket of `depth` that lacked `before`, and lacks `after` now.
    pub(super) fn see_bucket(&mut self, before: u128, after: u128, depth: u128) {
        self.bursts_over += u64::from(before <= depth && after > depth);
        self.burst = self.burst.max(part(after, depth));
    }
}

/// `some` in thousandths of a percent of `all`, rounded up: what is just beyond is beyond.
pub(super) fn part(some: u128, all: u128) -> u64 {
    let part = (some * u128::from(WHOLE)).div_ceil(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}
