//! Asks the daemons that are looked at, and makes figures of what they answer.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, panic, thread};

use serde_json::{Value, json};

use super::super::ask::{PATIENCE, ask_json_within};
use super::super::exit::ExitError;
use super::{figures, sum};

/// Of each daemon so many times as many keys are asked for where there are several: a key may be hot by what many nodes see.
const KEYS_OF_EACH: u32 = 10;

/// Longest wait for each of several daemons: the figures of all others wait as long.
const PATIENCE_WITH_EACH: Duration = Duration::from_secs(2);

/// The daemons that are looked at.
pub(super) struct Daemons {
    each: Vec<Daemon>,
    /// Keys that are shown of each list.
    shown: usize,
    /// Keys that each daemon is asked for.
    asked: String,
}

struct Daemon {
    socket: PathBuf,
    /// Its last answer, which the next one is compared with.
    before: Option<Value>,
}

impl Daemons {
    /// Asks all of them for the first time. One that does not answer may do so later.
    ///
    /// # Errors
    /// None of them answers: why the first does not.
    pub(super) fn ask(sockets: &[PathBuf], keys: u32) -> Result<Self, ExitError> {
        let sockets = each_once(sockets);
        let of_each = if sockets.len() == 1 { 1 } else { KEYS_OF_EACH };
        let each = sockets.into_iter().map(|socket| Daemon { socket, before: None }).collect();
        let mut daemons = Self { each, shown: keys as usize, asked: keys.saturating_mul(of_each).to_string() };
        let mut problem = None;
        for (index, answer) in daemons.ask_all().into_iter().enumerate() {
            match answer {
                Ok(answer) => daemons.each[index].before = Some(answer),
                Err(why) => problem = problem.or(Some(why)),
            }
        }
        match problem {
            Some(problem) if daemons.each.iter().all(|daemon| daemon.before.is_none()) => Err(problem),
            _ => Ok(daemons),
        }
    }

    /// What those that answer have done together since they were asked before, and why the first of the others does not.
    ///
    /// # Errors
    /// None of them answers.
    pub(super) fn figures(&mut self) -> Result<(Value, Option<ExitError>), ExitError> {
        let (mut figures, mut rows, mut problem) = (Vec::new(), Vec::new(), None);
        let answers = self.ask_all();
        for (daemon, answer) in self.each.iter_mut().zip(answers) {
            match answer {
                Ok(after) => {
                    // Of one that has not answered before there are no rates yet; all else is told.
                    let of_it = figures::between(daemon.before.as_ref().unwrap_or(&after), &after);
                    rows.push(sum::row(&daemon.socket, &of_it));
                    figures.push(of_it);
                    daemon.before = Some(after);
                }
                Err(why) => {
                    rows.push(json!({"socket": daemon.socket.display().to_string(), "problem": why.message}));
                    problem = problem.or(Some(why));
                }
            }
        }
        match problem {
            Some(problem) if figures.is_empty() => Err(problem),
            None if figures.len() == 1 => Ok((figures.remove(0), None)),
            problem => Ok((sum::sum(&figures, rows, self.shown), problem)),
        }
    }

    /// What each of them answers, in their order. All are asked at once, because one that hangs answers only after a while, and
    /// the figures of all are to be of the same second.
    fn ask_all(&self) -> Vec<Result<Value, ExitError>> {
        let patience = if self.each.len() == 1 { PATIENCE } else { PATIENCE_WITH_EACH };
        let words: [&[u8]; 3] = [b"RATION.TOP", b"COUNT", self.asked.as_bytes()];
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .each
                .iter()
                .map(|daemon| scope.spawn(move || ask_json_within(&daemon.socket, &words, patience)))
                .collect();
            let answers =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause)));
            answers.collect()
        })
    }
}

/// Sockets without those that were named before, by the same path or another: their figures would count twice.
fn each_once(sockets: &[PathBuf]) -> Vec<PathBuf> {
    let place = |socket: &Path| fs::canonicalize(socket).unwrap_or_else(|_| socket.to_owned());
    let (mut places, mut once) = (Vec::new(), Vec::new());
    for socket in sockets {
        let place = place(socket);
        if !places.contains(&place) {
            places.push(place);
            once.push(socket.clone());
        }
    }
    once
}
