//! A key's bytes as text.

use super::sketch::KEY_START;
use crate::core::page::LONGEST_NAME;

/// The key, or the beginning that is kept of it. One that is not UTF-8 is shown with `\x` escapes.
pub(super) fn shown(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) => text.to_owned(),
        // The name was cut in the middle of a character.
        Err(error) if error.error_len().is_none() && matches!(key.len(), KEY_START | LONGEST_NAME) => {
            String::from_utf8_lossy(&key[..error.valid_up_to()]).into_owned()
        }
        Err(_) => key.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_was_cut_is_left_out_and_other_bytes_are_escaped() {
        let long = "ä".repeat(LONGEST_NAME);
        assert_eq!(shown(&long.as_bytes()[1..][..3]), "\\xa4\\xc3\\xa4");
        assert_eq!(
            shown(format!("x{long}").as_bytes().split_at(KEY_START).0),
            format!("x{}", "ä".repeat((KEY_START - 1) / 2))
        );
        assert_eq!(shown(b"user:42"), "user:42");
    }
}
