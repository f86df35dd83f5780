//! Other builds of the daemon, as far as gossip goes: how the builds before and after this one encode usage, and what
//! each reads of another's frames.
//!
//! They are derived from the shipped codec by its one rule: the body of a version begins with that of the version
//! before.

use rationd::core::usage::Usage;
use rationd::wire::digest::{self, VERSION};

use crate::frames::Frame;

/// What is written here for the build before is version 1.
const _: () = assert!(VERSION == 2, "say what the build before writes now, and what it reads");

/// The field that a future version appends.
const UNKNOWN: &[u8] = b"\x03new";

/// Which build a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    /// The one before, which does not know of lost data.
    Older,
    /// This one.
    Ours,
    /// The one after.
    Newer,
}

impl Build {
    /// The frames in which this build reports `usage`.
    pub(super) fn encode(self, mut usage: Vec<Usage>) -> Vec<Vec<u8>> {
        if self == Self::Older {
            usage.iter_mut().for_each(|one| one.epoch = 0);
        }
        let mut frames = digest::encode(&usage);
        for frame in &mut frames {
            match self {
                Self::Older => {
                    assert_eq!(frame.pop(), Some(0), "a list of no losses is the last byte");
                    frame[0] = VERSION - 1;
                }
                Self::Ours => {}
                Self::Newer => {
                    frame[0] = VERSION + 1;
                    frame.extend(UNKNOWN);
                }
            }
        }
        frames
    }

    /// The usage in a frame; none if the frame is two versions ahead.
    pub(super) fn read(self, frame: &Frame) -> impl Iterator<Item = Usage> {
        let is_older = self == Self::Older;
        let usage = frame.read().unwrap_or_default().iter().filter(move |_| !is_older || frame.bytes[0] <= VERSION);
        usage.map(move |one| if is_older { Usage { epoch: 0, ..*one } } else { *one })
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::key::Digest;
    use rationd::core::time::Timestamp;
    use rationd::core::usage::Count;

    use super::*;
    use crate::frames::Frames;

    const ALL: [Build; 3] = [Build::Older, Build::Ours, Build::Newer];

    /// Usage number `number`; each third one reports a window that the store has lost.
    fn usage(number: u64) -> Usage {
        let window = Timestamp(1_800_000_000_000_000 + number % 5 * 1_000_000);
        let count = Count { admitted: number * 7, refunded: number % 2 };
        let epoch = if number.is_multiple_of(3) { 1_800_000_000_000_007 } else { 0 };
        Usage { digest: Digest::of("api", &number.to_be_bytes()), limit: (number % 3) as u8, window, count, epoch }
    }

    #[test]
    fn each_build_reads_the_next_ones_and_the_oldest_of_no_losses() {
        let usages: Vec<_> = (0..3_000).map(usage).collect();
        let without: Vec<_> = usages.iter().map(|one| Usage { epoch: 0, ..*one }).collect();
        for (writes, version) in ALL.into_iter().zip(VERSION - 1..) {
            let frames = writes.encode(usages.clone());
            assert!(frames.len() == 3 && frames.iter().all(|frame| frame[0] == version), "{writes:?}");
            let frames = Frames::new(frames);
            for reads in ALL {
                let heard: Vec<_> = frames.iter().flat_map(|frame| reads.read(frame)).collect();
                let wanted = match (writes, reads) {
                    (Build::Newer, Build::Older) => &[],
                    (Build::Older, _) | (_, Build::Older) => &without[..],
                    _ => &usages[..],
                };
                assert!(heard == wanted, "{reads:?} of {writes:?}");
            }
        }
    }

    #[test]
    fn who_has_nothing_to_tell_says_so_in_each_version() {
        let frames = ALL.map(|build| build.encode(Vec::new()));
        assert_eq!(frames[0], [[1, 0, 0]]);
        assert_eq!(frames[1], digest::encode(&[]));
        assert_eq!(frames[2], [[&[3, 0, 0, 0], UNKNOWN].concat()]);
    }
}
