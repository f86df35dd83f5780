//! What each checker proves, for which policies, and what it excuses, as data with which a test compares
//! `docs/internals/proof.md`.

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

    /// Returns `applies`. It is called at each place that excuses something, to name the exemption there.
    pub(super) fn when(&self, applies: bool) -> bool {
        applies
    }

    /// Returns `tokens`, the tokens that it forgives at this place.
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
    /// What it excuses.
    pub exemptions: &'static [&'static Exemption],
    /// A bug of `mutants.rs` or of the core that it notices; none where only its own test shows that it can fail.
    pub mutant: Option<&'static str>,
}
