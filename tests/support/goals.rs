//! Goals that are not reached yet: they stay in the files, say so in each run, and are tried on demand.

/// Whether goals that are not reached yet are tried: with `RATIOND_GOALS=1`.
pub fn are_tried(what: &str) -> bool {
    let tried = std::env::var_os("RATIOND_GOALS").is_some();
    if !tried {
        println!("NOT REACHED YET, tried with RATIOND_GOALS=1: {what}");
    }
    tried
}
