//! Asks the daemons that are looked at, and makes figures of what they answer.

use std::path::{Path, PathBuf};
use std::{panic, thread};

use serde_json::Value;

use super::super::args::TopArgs;
use super::super::ask::ask_json;
use super::super::exit::ExitError;
use super::{figures, sum};

/// Of each daemon so many times as many keys are asked for where there are several: a key may be hot by what many nodes see.
const KEYS_OF_EACH: u32 = 10;

/// The daemons that are looked at, each with its last answer.
pub(super) struct Daemons {
    each: Vec<(PathBuf, Value)>,
    /// Keys that are shown of each list, and that each daemon is asked for.
    shown: usize,
    asked: String,
}

impl Daemons {
    /// Asks all of them for the first time.
    ///
    /// # Errors
    /// One of them does not answer.
    pub(super) fn ask(args: &TopArgs, socket: &Path) -> Result<Self, ExitError> {
        let mut sockets = vec![socket.to_owned()];
        sockets.extend(args.and.iter().cloned());
        let of_each = if args.and.is_empty() { 1 } else { KEYS_OF_EACH };
        let asked = args.count.saturating_mul(of_each).to_string();
        let answers = ask_all(sockets.iter().map(PathBuf::as_path), &asked);
        let each = sockets.iter().cloned().zip(answers).map(|(socket, answer)| Ok((socket, answer?)));
        Ok(Self { each: each.collect::<Result<_, ExitError>>()?, shown: args.count as usize, asked })
    }

    /// What those that answer have done together since they were asked before, and why the first of the others does not.
    ///
    /// # Errors
    /// None of them answers.
    pub(super) fn figures(&mut self) -> Result<(Value, Option<ExitError>), ExitError> {
        let (mut figures, mut problem) = (Vec::new(), None);
        let answers = ask_all(self.each.iter().map(|(socket, _)| socket.as_path()), &self.asked);
        for ((_, before), answer) in self.each.iter_mut().zip(answers) {
            match answer {
                Ok(after) => {
                    figures.push(figures::between(before, &after));
                    *before = after;
                }
                Err(why) => problem = problem.or(Some(why)),
            }
        }
        match problem {
            Some(problem) if figures.is_empty() => Err(problem),
            problem => Ok((sum::sum(figures, self.shown), problem)),
        }
    }
}

/// What each of them answers, in their order. All are asked at once, because one that hangs answers only after ten seconds, and
/// the figures of all are to be of the same second.
fn ask_all<'a>(sockets: impl Iterator<Item = &'a Path>, keys: &str) -> Vec<Result<Value, ExitError>> {
    let ask = |socket: &Path| ask_json(socket, &[b"RATION.TOP", b"COUNT", keys.as_bytes()]);
    thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = sockets.map(|socket| scope.spawn(move || ask(socket))).collect();
        let answers =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause)));
        answers.collect()
    })
}
