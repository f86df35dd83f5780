//! Errors between an application and its daemon.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Reply;
use crate::wire::value::ReplyError;

/// Why there is no decision: the daemon did not answer, or its answer was an error. A denial is no error.
///
/// ```
/// use rationd::client::{Client, ClientError};
///
/// let error = Client::connect("/nowhere/rationd.sock").unwrap_err();
/// assert!(error.is_unreachable());
/// assert_eq!(
///     error.to_string(),
///     "no daemon answers on /nowhere/rationd.sock: there is no such socket; \
///      start one with `rationd serve`, or name its socket with --socket",
/// );
///
/// # rationd::example::run(|socket| {
/// # let mut rations = Client::connect(socket)?;
/// match rations.check("apii", "user:42", 1) {
///     Err(ClientError::Refused { message }) => assert_eq!(message, "ERR unknown policy 'apii': did you mean 'api'?"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(()) });
/// ```
#[derive(Debug)]
pub enum ClientError {
    /// No connection could be opened: nobody listens at the path, this user may not, or it took too long. Nothing was
    /// sent.
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The daemon did not answer in time. Whether it executed the command, and charged its cost, is not known.
    TimedOut {
        /// The path of the socket.
        path: PathBuf,
        /// The time limit that passed: [`Timeouts::answer`](super::Timeouts::answer).
        after: Duration,
    },
    /// The connection broke, or the daemon closed it. Whether commands without an answer were executed is not known.
    Broken {
        /// The path of the socket.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The other side sent bytes that are not RESP, so it is no daemon.
    Protocol {
        /// The path of the socket.
        path: PathBuf,
        /// What is wrong with the bytes.
        error: ReplyError,
    },
    /// The daemon answered with an error: it knows no such policy, for example. The connection goes on.
    Refused {
        /// The daemon's text, with its leading code: `ERR`, or `NOPERM` where the caller lacks a right.
        message: String,
    },
    /// The daemon answered with something that is no answer to this command: the other side is another server, or a
    /// daemon of another version.
    Unexpected {
        /// The command.
        command: &'static str,
        /// The reply.
        reply: Reply,
    },
    /// [`Client::receive`](super::Client::receive) was called, but no command waits for an answer.
    NothingSent,
}

impl ClientError {
    /// Turns a RESP error reply into [`ClientError::Refused`].
    pub(super) fn unless_refused(reply: Reply) -> Result<Reply, Self> {
        match reply {
            Reply::Error(message) => Err(Self::Refused { message }),
            reply => Ok(reply),
        }
    }

    /// Whether the daemon could not be asked: it is not running, hangs, or went away before it answered. An
    /// application that serves its users even then looks for this. Other errors should be reported, because waiting
    /// does not cure them. The command line ends with exit code 69 in this case.
    ///
    /// ```
    /// use rationd::client::{Client, ClientError};
    ///
    /// /// Whether a request may pass; without a daemon all do.
    /// fn passes(socket: &str, key: &str) -> Result<bool, ClientError> {
    ///     match Client::connect(socket).and_then(|mut rations| rations.check("api", key, 1)) {
    ///         Ok(decision) => Ok(decision.is_allowed()),
    ///         Err(error) if error.is_unreachable() => Ok(true),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    ///
    /// assert!(passes("/nowhere/rationd.sock", "user:42")?);
    /// # Ok::<(), ClientError>(())
    /// ```
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
            Self::Protocol { path, error } => {
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
            Self::Protocol { error, .. } => Some(error),
            _ => None,
        }
    }
}
