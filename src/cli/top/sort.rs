//! What policies are sorted by.

/// What policies are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By checks, the most first
    Rate,
    /// By denials, the most first
    Denied,
    /// By tokens that are held, the most first
    Held,
    /// By name
    Name,
}

impl Sort {
    /// The one after it.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Rate => Self::Denied,
            Self::Denied => Self::Held,
            Self::Held => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Rate => "checks",
            Self::Denied => "denials",
            Self::Held => "tokens held",
            Self::Name => "name",
        }
    }
}
