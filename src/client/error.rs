//! What can go wrong between an application and its daemon.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Reply;
use crate::wire::value::ReplyError;

/// Why there is no answer, or not the one that was asked for.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody accepts connections at the path.
    Unreachable {
        /// The socket's path.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// The daemon did not answer in time. Whether it executed the command is not known.
    TimedOut {
        /// The socket's path.
        path: PathBuf,
        /// How long was waited.
        after: Duration,
    },
    /// The connection broke. Whether commands without an answer were executed is not known.
    Broken {
        /// The socket's path.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// What came back is no RESP.
    Garbled {
        /// The socket's path.
        path: PathBuf,
        /// What is wrong with it.
        error: ReplyError,
    },
    /// The daemon answered with an error; the connection goes on.
    Refused {
        /// The daemon's text, with its leading code (`ERR`, `NOPERM`).
        message: String,
    },
    /// The daemon answered with another kind of value than the command has.
    Unexpected {
        /// The command.
        command: &'static str,
        /// What came.
        reply: Reply,
    },
    /// A reply was asked for, but no command waits for one.
    NothingSent,
}

impl ClientError {
    /// An error reply is an error.
    pub(super) fn unless_refused(reply: Reply) -> Result<Reply, Self> {
        match reply {
            Reply::Error(message) => Err(Self::Refused { message }),
            reply => Ok(reply),
        }
    }

    /// Whether no daemon could be asked: it is not running, hangs, or went away. The command line's
    /// exit code 69.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Broken { .. })
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { path, error } => {
                write!(f, "no daemon answers on {}: ", path.display())?;
                match error.kind() {
                    io::ErrorKind::NotFound => f.write_str("there is no such socket")?,
                    io::ErrorKind::ConnectionRefused => f.write_str("the socket is there, but nobody listens")?,
                    _ => write!(f, "{error}")?,
                }
                match error.kind() {
                    io::ErrorKind::PermissionDenied => f.write_str("; join the socket's group (see listen.mode)"),
                    _ => f.write_str("; start one with `rationd serve`, or name its socket with --socket"),
                }
            }
            Self::TimedOut { path, after } => write!(
                f,
                "no answer within {after:?} on {}; whether the command was executed is not known",
                path.display()
            ),
            Self::Broken { path, error } => write!(
                f,
                "the connection to {} broke: {error}; whether unanswered commands were executed is not known",
                path.display()
            ),
            Self::Garbled { path, error } => {
                write!(f, "{} answered with something else than RESP: {error}; is it a rationd socket?", path.display())
            }
            Self::Refused { message } => write!(f, "the daemon refused: {message}"),
            Self::Unexpected { command, reply } => {
                write!(f, "{command} was answered with {reply:?}; is the other side a rationd of this version?")
            }
            Self::NothingSent => f.write_str("no command waits for a reply: send one first"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { error, .. } | Self::Broken { error, .. } => Some(error),
            Self::Garbled { error, .. } => Some(error),
            _ => None,
        }
    }
}
