//! The status page of the admin address: tables that need no script, and events from which a script keeps them live.
//!
//! It only reads. Keys are on it only where the configuration says so, because every program of the host can reach it.
//! The figures are made at most once a second however many look, and streams are bounded.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

use super::tell::Tell;
use super::top;
use crate::clock;
use crate::core::time::{Instant, Micros};

/// Most streams of events at once.
pub const MOST_STREAMS: usize = 8;
/// Between two events.
const EVERY: Duration = Duration::from_secs(1);
/// For so long figures are not made anew.
const FRESH: Micros = Micros::from_millis(900);
/// Most keys of each list.
const KEYS: usize = 20;
/// After so many events the charts follow.
const CHARTS_EACH: u64 = 5;

/// What stands where there is no value.
const NOTHING: &str = "–";

const PAGE: &str = include_str!("status_page/page.html");

/// What all who look at the page share.
#[derive(Debug)]
pub struct StatusPage {
    /// Whether keys are shown.
    shows_keys: bool,
    figures: Mutex<Option<(Instant, Value)>>,
    streams: Arc<Semaphore>,
}

impl StatusPage {
    /// A page with or without keys.
    #[must_use]
    pub fn new(shows_keys: bool) -> Self {
        Self { shows_keys, figures: Mutex::default(), streams: Arc::new(Semaphore::new(MOST_STREAMS)) }
    }

    /// The figures as of a moment ago.
    #[must_use]
    pub fn figures(&self, tell: &dyn Tell) -> Value {
        let now = tell.state().node.clock.now();
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        match &*figures {
            Some((at, known)) if now.since(*at) < FRESH => known.clone(),
            _ => {
                let made = top::top(tell.state(), self.shows_keys.then_some(KEYS));
                figures.insert((now, made)).1.clone()
            }
        }
    }

    /// The page, and the policy for browsers that it comes with.
    #[must_use]
    pub fn html(&self, tell: &dyn Tell) -> (String, String) {
        let figures = self.figures(tell);
        let nonce = format!("{:016x}{:016x}", clock::random(), clock::random());
        let list = |kind: &str| match figures["hot"][kind].as_array() {
            Some(keys) => rows(&["Policy", "Key", "Times"], keys, |key| {
                vec![text(&key["policy"]), text(&key["key"]), text(&key["times"])]
            }),
            None => {
                "<tr><td>Keys are shown with listen.admin_keys = true; rationd top shows them to administrators.".into()
            }
        };
        let parts = [
            ("%NONCE%", nonce.clone()),
            ("%HEAD%", escaped(&tell.summary())),
            ("%RATES%", String::new()),
            ("%USED%", list("used")),
            ("%DENIED%", list("denied")),
            ("%POLICIES%", policies(&figures)),
            ("%SERVERS%", servers(&figures)),
            ("%PEERS%", peers(&figures)),
        ];
        let policy = format!(
            "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        (filled(&parts), policy)
    }

    /// A stream of events; `None` when there are as many as there may be.
    #[must_use]
    pub fn events(self: &Arc<Self>, tell: Arc<dyn Tell>) -> Option<Events> {
        let place = self.streams.clone().try_acquire_owned().ok()?;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Events { page: self.clone(), tell, ticks, sent: 0, _place: place })
    }
}

/// The page with its parts in it. It is read once from front to back, so that a part that looks like a mark stays
/// what it is.
fn filled(parts: &[(&str, String)]) -> String {
    let (mut page, mut rest) = (String::with_capacity(PAGE.len() * 2), PAGE);
    while let Some(at) = rest.find('%') {
        page.push_str(&rest[..at]);
        rest = &rest[at..];
        match parts.iter().find(|(mark, _)| rest.starts_with(mark)) {
            Some((mark, part)) => {
                page.push_str(part);
                rest = &rest[mark.len()..];
            }
            None => {
                page.push('%');
                rest = &rest[1..];
            }
        }
    }
    page + rest
}

fn policies(figures: &Value) -> String {
    let list = figures["policies"].as_array().map_or(&[][..], Vec::as_slice);
    let fields = ["allowed", "denied", "shadowed", "waited", "held", "share"];
    rows(&["Policy", "Admitted", "Denied", "Shadow", "Waited", "Held", "Share"], list, |policy| {
        std::iter::once("name").chain(fields).map(|field| text(&policy[field])).collect()
    })
}

fn servers(figures: &Value) -> String {
    if figures["store"].is_null() {
        return "<tr><td>Counted in this process.".into();
    }
    let list = figures["store"]["servers"].as_array().map_or(&[][..], Vec::as_slice);
    rows(&["Server", "State", "Breaker", "Problem"], list, |server| {
        let state = if server["up"] == true { "up" } else { "AWAY" };
        vec![text(&server["address"]), state.to_owned(), text(&server["breaker"]), text(&server["problem"])]
    })
}

fn peers(figures: &Value) -> String {
    match figures["fleet"]["peers"].as_array() {
        Some(list) => rows(&["Node", "State", "Address", "Owns"], list, |peer| {
            ["name", "state", "address", "owns"].map(|field| text(&peer[field])).to_vec()
        }),
        None => "<tr><td>This node is alone.".into(),
    }
}

fn rows(head: &[&str], list: &[Value], cells: impl Fn(&Value) -> Vec<String>) -> String {
    let rows: Vec<Vec<String>> = list.iter().map(cells).collect();
    // Columns of words begin at the left, those of numbers end at the right.
    let is_number = |cell: &String| cell == NOTHING || cell.parse::<f64>().is_ok();
    let words = |column: usize| rows.iter().filter_map(|row| row.get(column)).any(|cell| !is_number(cell));
    let mut out = String::from("<tr>");
    for (column, word) in head.iter().enumerate() {
        let class = if words(column) { " class=t" } else { "" };
        let _ = write!(out, "<th{class}>{word}");
    }
    for row in &rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = match (cell == "AWAY", words(column)) {
                (true, _) => " class=\"t bad\"",
                (false, true) => " class=t",
                (false, false) => "",
            };
            let _ = write!(out, "<td{class}>{}", escaped(cell));
        }
    }
    out
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Text of clients and peers as HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A body that goes on until its reader leaves: figures each second, and the charts now and then.
pub struct Events {
    page: Arc<StatusPage>,
    tell: Arc<dyn Tell>,
    ticks: Interval,
    sent: u64,
    _place: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.ticks.poll_tick(cx));
        let mut text = String::new();
        if self.sent.is_multiple_of(CHARTS_EACH) {
            let _ = write!(text, "event: history\ndata: {}\n\n", self.tell.state().history.json());
        }
        let _ = write!(text, "event: top\ndata: {}\n\n", self.page.figures(&*self.tell));
        self.sent += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_clients_and_peers_are_called_is_no_markup() {
        let figures = json!({
            "policies": [{"name": "<script>", "allowed": 1}],
            "fleet": {"peers": [{"name": "a\"b'&\u{7}", "state": "up", "address": "x", "owns": 30}]},
        });
        assert!(policies(&figures).contains("<td class=t>&lt;script&gt;"), "{}", policies(&figures));
        assert!(peers(&figures).contains("a&quot;b&#39;&amp;\u{fffd}"), "{}", peers(&figures));
        assert!(peers(&figures).ends_with("<td>30"), "{}", peers(&figures));
    }

    #[test]
    fn a_part_that_looks_like_a_mark_is_left_alone() {
        let page = filled(&[("%HEAD%", "%NONCE%".into()), ("%NONCE%", "n".into())]);
        assert!(page.contains("<p id=\"head\">%NONCE%</p>") && page.contains("nonce=\"n\""), "{page}");
    }

    #[test]
    fn the_page_has_no_foreign_assets() {
        let addresses: Vec<&str> = PAGE.matches("http").collect();
        assert_eq!(addresses.len(), 2, "the name space of SVG, and an attribute of meta: {PAGE}");
        assert!(!PAGE.contains(" src=") && !PAGE.contains("@import") && !PAGE.contains("url("));
    }
}
