//! Asks the daemons, each by its socket or all nodes of a fleet by one of them, and makes figures of the answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, panic, thread};

use serde_json::{Value, json};

use super::super::ask::{PATIENCE, ask_json_within};
use super::super::exit::{Code, ExitError};
use super::{figures, sum};

/// Each of several daemons is asked for so many times as many keys as are shown, because a key may be hot only in the
/// sum over many nodes.
const KEYS_OF_EACH: u32 = 10;

/// Longest wait for each of several daemons. It is short, because the figures of all others wait as long.
const PATIENCE_WITH_EACH: Duration = Duration::from_secs(2);

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// Each of these daemons.
    Sockets(Vec<PathBuf>),
    /// The daemon behind this socket, about each node of its fleet.
    Fleet(PathBuf),
}

/// The daemons that are looked at.
pub(super) struct Daemons {
    asked: Asked,
    /// The last answer of each, which the next one is compared with.
    before: BTreeMap<String, Value>,
    /// Keys that are shown of each list.
    shown: usize,
    /// Keys that each daemon is asked for.
    keys: String,
}

/// The answer of one daemon, or why there is none.
struct Answer {
    /// Its socket, or its name in the fleet.
    daemon: String,
    came: Result<Value, Missing>,
}

/// A daemon whose figures are missing.
struct Missing {
    /// The daemon itself cannot be reached, and not only its figures are missing.
    away: bool,
    /// The number of daemons that this stands for.
    daemons: u64,
    why: ExitError,
}

impl Daemons {
    /// Asks all of them for the first time. One that does not answer may do so later.
    ///
    /// # Errors
    /// None of them answers: why the first does not.
    pub(super) fn ask(asked: Asked, keys: u32) -> Result<Self, ExitError> {
        let asked = match asked {
            Asked::Sockets(sockets) => Asked::Sockets(each_once(&sockets)),
            fleet @ Asked::Fleet(_) => fleet,
        };
        let of_each = match &asked {
            Asked::Sockets(sockets) if sockets.len() == 1 => 1,
            _ => KEYS_OF_EACH,
        };
        let keys_of_each = keys.saturating_mul(of_each).to_string();
        let mut daemons = Self { asked, before: BTreeMap::new(), shown: keys as usize, keys: keys_of_each };
        let mut problem = None;
        for Answer { daemon, came } in daemons.ask_all()? {
            match came {
                Ok(answer) => drop(daemons.before.insert(daemon, answer)),
                Err(missing) => problem = problem.or(Some(missing.why)),
            }
        }
        match problem {
            Some(problem) if daemons.before.is_empty() => Err(problem),
            _ => Ok(daemons),
        }
    }

    /// The figures of all daemons that answer together, since they were last asked; and why the first of the others
    /// does not answer.
    ///
    /// # Errors
    /// None of them answers.
    pub(super) fn figures(&mut self) -> Result<(Value, Option<ExitError>), ExitError> {
        let (mut figures, mut rows, mut problem) = (Vec::new(), Vec::new(), None);
        let kind = match self.asked {
            Asked::Sockets(_) => "socket",
            Asked::Fleet(_) => "node",
        };
        for Answer { daemon, came } in self.ask_all()? {
            match came {
                Ok(after) => {
                    // A daemon that answers for the first time has no rates yet; its other figures are shown.
                    let of_it = figures::between(self.before.get(&daemon).unwrap_or(&after), &after);
                    rows.push(sum::row((kind, &daemon), &of_it, after["policies_left_out"].as_u64()));
                    figures.push(of_it);
                    self.before.insert(daemon, after);
                }
                Err(Missing { away, daemons, why }) => {
                    rows.push(json!({kind: daemon, "away": away, "daemons": daemons, "problem": why.message}));
                    problem = problem.or(Some(why));
                }
            }
        }
        match (problem, &self.asked) {
            (Some(problem), _) if figures.is_empty() => Err(problem),
            (None, Asked::Sockets(sockets)) if sockets.len() == 1 => Ok((figures.remove(0), None)),
            (problem, _) => Ok((sum::sum(&figures, rows, self.shown), problem)),
        }
    }

    fn ask_all(&self) -> Result<Vec<Answer>, ExitError> {
        match &self.asked {
            Asked::Sockets(sockets) => Ok(self.ask_sockets(sockets)),
            Asked::Fleet(socket) => self.ask_fleet(socket),
        }
    }

    /// The answer of each daemon, in order. All are asked at once: one that hangs must not delay the others, whose
    /// figures are to be of the same second.
    fn ask_sockets(&self, sockets: &[PathBuf]) -> Vec<Answer> {
        let patience = if sockets.len() == 1 { PATIENCE } else { PATIENCE_WITH_EACH };
        let words: [&[u8]; 3] = [b"RATION.TOP", b"COUNT", self.keys.as_bytes()];
        thread::scope(|scope| {
            let threads: Vec<_> = sockets
                .iter()
                .map(|socket| (socket, scope.spawn(move || ask_json_within(socket, &words, patience))))
                .collect();
            let answers = threads.into_iter().map(|(socket, thread)| {
                let came = thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause));
                let came = came.map_err(|why| Missing { away: true, daemons: 1, why });
                Answer { daemon: socket.display().to_string(), came }
            });
            answers.collect()
        })
    }

    /// The answers of a fleet's nodes to the daemon behind `socket`, in the order of their names.
    ///
    /// # Errors
    /// The daemon does not answer, or is in no fleet, or cannot ask one.
    fn ask_fleet(&self, socket: &Path) -> Result<Vec<Answer>, ExitError> {
        let words: [&[u8]; 4] = [b"RATION.TOP", b"COUNT", self.keys.as_bytes(), b"FLEET"];
        let answer = ask_json_within(socket, &words, PATIENCE).map_err(|why| {
            // The answer of an earlier daemon, which does not know the word `FLEET`.
            if !why.message.starts_with("syntax error") {
                return why;
            }
            let next = "upgrade it, or name the sockets of all";
            ExitError::new(
                Code::Usage,
                format!("this daemon is of an earlier version, which cannot ask its fleet: {next}"),
            )
        })?;
        let nodes = answer["nodes"].as_array().into_iter().flatten().map(node);
        // Nodes that went away unannounced are only counted, since their names are no longer known.
        let missed = answer["missed"].as_u64().filter(|missed| *missed > 0).map(|missed| {
            let why = ExitError::new(Code::DaemonUnreachable, format!("{missed} that were there are missed"));
            Answer { daemon: format!("({missed} more)"), came: Err(Missing { away: true, daemons: missed, why }) }
        });
        Ok(nodes.chain(missed).collect())
    }
}

/// Reads the answer of a node of the fleet.
fn node(answer: &Value) -> Answer {
    let daemon = answer["node"].as_str().unwrap_or_default().to_owned();
    let came = match answer["problem"].as_str() {
        None => Ok(answer["top"].clone()),
        Some(problem) => {
            let why = ExitError::new(Code::DaemonUnreachable, format!("{daemon}: {problem}"));
            Err(Missing { away: answer["away"] == true, daemons: 1, why })
        }
    };
    Answer { daemon, came }
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
