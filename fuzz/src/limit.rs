//! The grammar of limits and periods.
//!
//! Holds: what is printed is read as what it was, within the bounds that the type states; and an error says what was
//! seen.

use rationd::core::limit::{Limit, MAX_COUNT, MAX_PERIOD, format_period, parse_period};

/// What limits are made of.
pub const WORDS: &[&[u8]] = &[
    b"100/1s",
    b" burst ",
    b" fixed",
    b" from-first",
    b" sliding",
    b" concurrent",
    b" gcra",
    b"/",
    b"us",
    b"ms",
    b"s",
    b"m",
    b"h",
    b"d",
    b"_",
    b"9007199254740991",
    b"9007199254740992",
    b"18446744073709551615",
    b"3660d",
    b"0",
    b"1",
    b" ",
    b"\t",
    b"-",
    b"+",
    "\u{0663}".as_bytes(),
];

/// See the module.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Limit::parse(&text) {
        Ok(limit) => {
            assert_eq!(Limit::parse(&limit.to_string()), Ok(limit), "{limit}");
            assert!((1..=MAX_COUNT).contains(&limit.count) && (1..=MAX_COUNT).contains(&limit.capacity()), "{limit}");
            assert!(limit.period.0 > 0 && limit.period <= MAX_PERIOD, "{limit}");
            let (time, tokens) = limit.interval();
            assert_eq!(u128::from(time) * u128::from(limit.count), u128::from(tokens) * u128::from(limit.period.0));
        }
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
    match parse_period(&text) {
        Ok(period) => assert_eq!(parse_period(&format_period(period)), Ok(period), "{text:?}"),
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}
