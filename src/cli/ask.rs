//! Sends one command to the daemon over its socket.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::exit::{Code, ExitError};
use crate::wire::value::Value;

/// Longest wait for an answer by a command that asks one daemon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Sends one command and waits for its answer.
///
/// # Errors
/// The daemon does not answer (exit code 69). An error reply counts as an answer.
pub(crate) fn ask(socket: &Path, words: &[&[u8]]) -> Result<Value, ExitError> {
    ask_within(socket, words, PATIENCE)
}

fn ask_within(socket: &Path, words: &[&[u8]], patience: Duration) -> Result<Value, ExitError> {
    round_trip(socket, words, patience).map_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            return ExitError::new(Code::DaemonUnreachable, closed_to_us(socket, &error));
        }
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no such socket".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no answer within {patience:?}"),
            _ => error.to_string(),
        };
        let path = socket.display();
        let next = "start one with `rationd serve`, or name its socket with --socket";
        ExitError::new(Code::DaemonUnreachable, format!("no daemon answers on {path}: {why}; {next}"))
    })
}

/// Sends a command whose answer is JSON.
///
/// # Errors
/// The daemon does not answer, or answers with an error.
pub(crate) fn ask_json(socket: &Path, words: &[&[u8]]) -> Result<serde_json::Value, ExitError> {
    ask_json_within(socket, words, PATIENCE)
}

/// The same, but waits no longer than `patience` for each part of the answer.
///
/// # Errors
/// As for [`ask_json`].
pub(crate) fn ask_json_within(
    socket: &Path,
    words: &[&[u8]],
    patience: Duration,
) -> Result<serde_json::Value, ExitError> {
    let answer = ask_within(socket, words, patience)?;
    match &answer {
        Value::Error(problem) => Err(ExitError::new(Code::Usage, without_code(problem))),
        other => other.as_bytes().and_then(|text| serde_json::from_slice(text).ok()).ok_or_else(|| {
            ExitError::new(Code::DaemonUnreachable, "the answer is not JSON: is this a rationd of this version?")
        }),
    }
}

/// An error reply without its leading `ERR` or `NOPERM`.
pub(crate) fn without_code(problem: &str) -> &str {
    ["ERR ", "NOPERM "].iter().find_map(|code| problem.strip_prefix(code)).unwrap_or(problem)
}

/// Why this user may not open an existing socket, and who may.
fn closed_to_us(socket: &Path, error: &io::Error) -> String {
    let whose = std::fs::metadata(socket).map_or_else(
        |_| "its directory may not be entered".to_owned(),
        |seen| format!("it is of uid {} and gid {}, mode {:04o}", seen.uid(), seen.gid(), seen.mode() & 0o777),
    );
    let next = "run as that user or in its group; `listen.group` and `listen.mode` of the daemon say who may";
    format!("{} may not be opened: {error}: {whose}; {next}", socket.display())
}

fn round_trip(socket: &Path, words: &[&[u8]], patience: Duration) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend(format!("${}\r\n", word.len()).bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        if let Some((value, _)) = Value::parse(&answer).map_err(io::Error::other)? {
            return Ok(value);
        }
        match stream.read(&mut part)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            read => answer.extend_from_slice(&part[..read]),
        }
    }
}
