//! Counts replies without storing them: finds where each one ends and what it begins with.

/// The kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An error.
    Error,
    /// An array that begins with 1, which is a denial if the command is one of ours.
    One,
    /// Anything else.
    Other,
}

/// The length and kind of the reply at the beginning of `input`; `None` when it has not arrived completely.
///
/// # Errors
/// The bytes are no reply.
pub(super) fn next(input: &[u8]) -> Result<Option<(usize, Kind)>, ()> {
    let (mut at, mut wanted) = (0_usize, 1_u64);
    let mut kind = Kind::Other;
    while wanted > 0 {
        wanted -= 1;
        let Some(&sign) = input.get(at) else { return Ok(None) };
        let Some(end) = input[at..].iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let line = input[at + 1..at + end].strip_suffix(b"\r").ok_or(())?;
        match sign {
            b'-' if at == 0 => kind = Kind::Error,
            b':' if line == b"1" && at == 4 => kind = Kind::One, // behind `*n`, n of one digit
            b':' if line == b"1" && at == 5 && input[0] == b'*' => kind = Kind::One,
            _ => {}
        }
        at += end + 1;
        match sign {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'*' | b'~' | b'>' => wanted += length(line)?,
            b'%' => wanted += 2 * length(line)?,
            b'$' | b'=' | b'!' => {
                if line != b"-1" {
                    at += usize::try_from(length(line)?).map_err(drop)? + 2;
                }
                if at > input.len() {
                    return Ok(None);
                }
            }
            _ => return Err(()),
        }
    }
    Ok(Some((at, kind)))
}

fn length(digits: &[u8]) -> Result<u64, ()> {
    if digits == b"-1" {
        return Ok(0);
    }
    if digits.is_empty() || digits.len() > 9 {
        return Err(());
    }
    digits.iter().try_fold(0, |sum, &digit| match digit {
        b'0'..=b'9' => Ok(sum * 10 + u64::from(digit - b'0')),
        _ => Err(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_of_every_kind() {
        for (reply, kind) in [
            (&b"+OK\r\n"[..], Kind::Other),
            (b"-ERR x\r\n", Kind::Error),
            (b":1\r\n", Kind::Other),
            (b"$3\r\na\nb\r\n", Kind::Other),
            (b"$-1\r\n", Kind::Other),
            (b"*-1\r\n", Kind::Other),
            (b"*5\r\n:0\r\n:1\r\n:1\r\n:-1\r\n:1\r\n", Kind::Other),
            (b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:5\r\n", Kind::One),
            (b"*10\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n$4\r\nrate\r\n$1\r\nx\r\n$5\r\nlease\r\n", Kind::One),
            (b"*2\r\n*1\r\n%1\r\n+a\r\n_\r\n#t\r\n", Kind::Other),
        ] {
            assert_eq!(next(&[reply, b":1\r\n"].concat()), Ok(Some((reply.len(), kind))), "{}", reply.escape_ascii());
            for part in 0..reply.len() {
                assert_eq!(next(&reply[..part]), Ok(None), "{} cut at {part}", reply.escape_ascii());
            }
        }
    }

    #[test]
    fn refuses_what_is_no_reply() {
        for bad in [&b"HTTP/1.1 400\r\n"[..], b":1\n", b"*x\r\n", b"$99999999999\r\n"] {
            assert_eq!(next(bad), Err(()), "{}", bad.escape_ascii());
        }
    }
}
