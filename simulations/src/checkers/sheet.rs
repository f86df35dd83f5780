//! What each checker proves, for which policies, and what it excuses: data, so that `docs/internals/proof.md` can be
//! compared with the code. Judges nothing.

/// What a checker does not judge, or forgives, and why that hides no more than it says.
#[derive(Debug)]
pub struct Exemption {
    /// In a few words.
    pub name: &'static str,
    /// The reason, as a sentence.
    pub reason: &'static str,
}

impl Exemption {
    pub(super) const fn new(name: &'static str, reason: &'static str) -> Self {
        Self { name, reason }
    }

    /// Whether it applies: says at the place where something is excused by what.
    pub(super) fn when(&self, applies: bool) -> bool {
        applies
    }

    /// The tokens that it forgives.
    pub(super) fn forgives(&self, tokens: u64) -> u64 {
        tokens
    }
}

/// One checker.
#[derive(Debug)]
pub struct Sheet {
    /// Its file.
    pub file: &'static str,
    /// The invariants that it reports.
    pub invariants: &'static [&'static str],
    /// What holds in a run in which it finds nothing.
    pub proves: &'static str,
    /// The algorithms and shapes of policies that it judges.
    pub judges: &'static str,
    /// See there.
    pub exemptions: &'static [&'static Exemption],
    /// A bug of `mutants.rs` or of the core that it notices; none where only its own test shows that it can fail.
    pub mutant: Option<&'static str>,
}
