//! Deterministic simulations of the decision core.
