//! The daemon's log: to stderr, as text on a terminal and as JSON otherwise.
//!
//! Warnings and errors that repeat are left out after a few within a while, and counted: a store that is
//! away must not fill a disk.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use super::args::Globals;
use super::output::Paint;
use crate::clock::Clock;
use crate::config::{Log, LogFormat};
use crate::core::time::{Instant, Micros};

/// The variable that names a level or a filter.
const VARIABLE: &str = "RATIOND_LOG";
/// Lines of one place in the source that are written within [`WHILE`].
const MOST: u32 = 10;
const WHILE: Micros = Micros::from_secs(10);

/// Starts the log. Returns the count of lines that were left out.
///
/// # Errors
/// What is wrong with the filter that was asked for.
pub(crate) fn start(log: &Log, globals: &Globals) -> Result<Arc<AtomicU64>, String> {
    let filter = filter(log, globals)?;
    let suppressed = Arc::new(AtomicU64::new(0));
    let flood = Flood { clock: Clock::start(), seen: Mutex::default(), suppressed: suppressed.clone() };
    let json = match log.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let base = tracing_subscriber::registry().with(filter).with(flood);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let started = if json {
        base.with(lines.json().flatten_event(true)).try_init()
    } else {
        base.with(lines.with_ansi(Paint::stderr(globals.color).is_on()).with_target(false)).try_init()
    };
    started.map_err(|error| error.to_string())?;
    Ok(suppressed)
}

/// -v and -q win over the variable, which wins over the configuration.
fn filter(log: &Log, globals: &Globals) -> Result<EnvFilter, String> {
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = match (globals.verbose, globals.quiet) {
        (0, 0) => variable.as_deref().unwrap_or(&log.level),
        (0, 1) => "warn",
        (0, _) => "error",
        (1, _) => "info,rationd=debug",
        _ => "debug,rationd=trace",
    };
    EnvFilter::try_new(text).map_err(|error| format!("{VARIABLE} or log.level is {text:?}: {error}"))
}

/// Leaves out what repeats too often.
struct Flood {
    clock: Clock,
    seen: Mutex<HashMap<Identifier, (Instant, u32)>>,
    suppressed: Arc<AtomicU64>,
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let now = self.clock.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = seen.entry(event.metadata().callsite()).or_insert((now, 0));
        if now.since(*since) > WHILE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        let enabled = *count <= MOST;
        if !enabled {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        enabled
    }
}
