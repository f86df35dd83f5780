//! The daemon's log: to stderr, as text on a terminal and as JSON otherwise.
//!
//! Repeated lines are left out after some within ten seconds, and counted, so that neither a store that is away nor a
//! client that asks for reloads can fill a disk. Logging never waits for the reader of the log: see `queue`.

mod queue;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::Queue;
use super::globals::Globals;
use super::output::Paint;
use crate::clock::Clock;
use crate::config::{Log, LogFormat};
use crate::core::time::{Instant, Micros};

/// The environment variable with a level or a filter.
pub(crate) const VARIABLE: &str = "RATIOND_LOG";
/// Most warnings and errors from one place in the source within [`WHILE`].
const MOST: u32 = 10;
/// The same for informational lines. It is higher, because a fleet that starts reports each node.
const MOST_INFO: u32 = 50;
const WHILE: Micros = Micros::from_secs(10);

/// The log of this process.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    suppressed: Arc<AtomicU64>,
    queue: Queue,
}

impl Started {
    /// Lines that were left out because too many came from the same place.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Lines that were dropped because the reader did not keep up.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Waits until all lines are written, but at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }
}

/// Starts the log.
///
/// # Errors
/// What is wrong with the filter, or with stderr.
pub(crate) fn start(log: &Log, globals: &Globals) -> Result<Started, String> {
    let filter = filter(log, globals)?;
    let suppressed = Arc::new(AtomicU64::new(0));
    let flood = Flood { clock: Clock::start(), seen: Mutex::default(), suppressed: suppressed.clone() };
    let json = match log.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let base = tracing_subscriber::registry().with(filter).with(flood);
    let queue = Queue::to_stderr().map_err(|error| format!("the log cannot be written: {error}"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(queue.clone());
    let started = if json {
        base.with(lines.json().flatten_event(true)).try_init()
    } else {
        base.with(lines.with_ansi(Paint::stderr(globals.color).is_on()).with_target(false)).try_init()
    };
    started.map_err(|error| error.to_string())?;
    // The default hook writes to stderr directly, and the thread that panics could block there.
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let captured = backtrace.status() == std::backtrace::BacktraceStatus::Captured;
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        let payload = panic.payload();
        let words = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let why = words.unwrap_or("no words");
        let backtrace = if captured { format!("\n{backtrace}") } else { String::new() };
        tracing::error!(place, thread = thread.name().unwrap_or("?"), "panicked: {why}{backtrace}");
    }));
    Ok(Started { suppressed, queue })
}

/// The flags -v and -q override the variable, which overrides the configuration.
pub(crate) fn filter(log: &Log, globals: &Globals) -> Result<Targets, String> {
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = match (globals.verbose, globals.quiet) {
        (0, 0) => variable.as_deref().unwrap_or(&log.level),
        (0, 1) => "warn",
        (0, _) => "error",
        (1, _) => "info,rationd=debug",
        _ => "debug,rationd=trace",
    };
    parse(text).map_err(|problem| format!("{VARIABLE} or log.level is {text:?}: {problem}"))
}

/// A level, or a filter that does not silence this program completely.
///
/// # Errors
/// What is wrong with it. `tracing` takes a word that is no level for the name of a module, so that everything else
/// would be silenced without notice.
pub(crate) fn parse(text: &str) -> Result<Targets, String> {
    let directives = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let wanted = "a level (error, warn, info, debug, trace) or a filter like \"info,rationd::store=debug\" was wanted";
    if let Some(part) = directives().find(|part| part.contains(['[', '{', ']', '}'])) {
        return Err(format!("{part:?} names a span, and rationd's log has none; {wanted}"));
    }
    if let Some(word) = directives().filter(|part| !part.contains('=')).find(|word| !is_level(word)) {
        return Err(format!("{word:?} is no level; {wanted}"));
    }
    let tells_of_us = |part: &str| is_level(part) || part.starts_with("rationd=") || part.starts_with("rationd::");
    if !directives().any(tells_of_us) {
        return Err(format!("it would leave nothing of rationd's log; {wanted}"));
    }
    directives().collect::<Vec<_>>().join(",").parse().map_err(|error| format!("{error}; {wanted}"))
}

/// Counts lines, to leave out those that repeat too often.
struct Flood {
    clock: Clock,
    seen: Mutex<HashMap<Identifier, (Instant, u32)>>,
    suppressed: Arc<AtomicU64>,
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let most = match *event.metadata().level() {
            Level::ERROR | Level::WARN => MOST,
            Level::INFO => MOST_INFO,
            _ => return true,
        };
        let now = self.clock.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = seen.entry(event.metadata().callsite()).or_insert((now, 0));
        if now.since(*since) > WHILE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        let enabled = *count <= most;
        if !enabled {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        enabled
    }
}
