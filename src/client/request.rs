//! Requests as bytes.

use std::io::Write;

/// Appends one command to `out`: an array of bulk strings, the command's name first.
pub fn write_request(out: &mut Vec<u8>, words: &[&[u8]]) {
    header(out, '*', words.len());
    for word in words {
        header(out, '$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, kind: char, len: usize) {
    write!(out, "{kind}{len}\r\n").expect("writing to memory cannot fail");
}
