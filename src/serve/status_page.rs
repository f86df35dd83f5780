//! The status page of the admin address: tables that need no script, and events from which a script keeps them live.
//!
//! It only reads. Keys are on it only where the configuration says so, because every program of the host can reach it.
//! The figures are made about once a second however many look, and streams are bounded. While somebody looks, each node
//! of the fleet is asked for its totals, which it gives as far as its `fleet.top` allows.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

use super::daemon_status::DaemonStatus;
use super::fleet_top;
use super::top;
use crate::clock;
use crate::core::policy::ON_TRIAL;
use crate::core::time::{Instant, Micros};

/// Most streams of events at once.
pub const MOST_STREAMS: usize = 8;
/// Time between two events.
const EVERY: Duration = Duration::from_secs(1);
/// Figures are shown for so long before new ones are made: a little less than [`EVERY`], so that each event has new
/// ones.
const FRESH: Micros = Micros::from_millis(900);
/// The totals of other nodes are shown for so long. A page that is open asks again sooner, so this only hides what is
/// left from an earlier viewer.
const STALE: Micros = Micros::from_secs(10);
/// Most keys of each list.
const KEYS: usize = 20;
/// The charts follow every so many events, as often as there are new samples.
const CHARTS_EACH: u64 = 5;

/// The text of a cell without a value.
const NOTHING: &str = "–";

const PAGE: &str = include_str!("status_page/page.html");

/// The state that all viewers of the page share.
#[derive(Debug)]
pub struct StatusPage {
    /// Whether keys are shown.
    shows_keys: bool,
    figures: Mutex<Option<(Instant, Value)>>,
    nodes: Arc<Mutex<Nodes>>,
    streams: Arc<Semaphore>,
}

impl StatusPage {
    /// A page with or without keys.
    #[must_use]
    pub fn new(shows_keys: bool) -> Self {
        Self {
            shows_keys,
            figures: Mutex::default(),
            nodes: Arc::default(),
            streams: Arc::new(Semaphore::new(MOST_STREAMS)),
        }
    }

    /// The figures as of a moment ago.
    #[must_use]
    pub fn figures(&self, daemon: &dyn DaemonStatus) -> Value {
        let now = daemon.state().node.clock.now();
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        match &*figures {
            Some((at, known)) if now.since(*at) < FRESH => known.clone(),
            _ => {
                let made = top::top(daemon.state(), self.shows_keys.then_some(KEYS));
                figures.insert((now, made)).1.clone()
            }
        }
    }

    /// The totals of each node of the fleet as of a moment ago, if there are any. Asks the nodes again, unless they
    /// were just asked.
    #[must_use]
    pub fn nodes(&self, daemon: &dyn DaemonStatus) -> Value {
        let state = daemon.state();
        if state.fleet_look.get().is_none() {
            return Value::Null;
        }
        let (now, looking) = (state.node.clock.now(), state.clone());
        ask(&self.nodes, now, async move {
            let seen = fleet_top::of_fleet(&looking, 0).await?;
            let figures = seen["nodes"].as_array().into_iter().flatten().map(totals).collect();
            Some((looking.node.clock.now(), figures))
        });
        let nodes = lock(&self.nodes);
        let fresh = nodes.totals.as_ref().filter(|(at, _)| now.since(*at) < STALE);
        fresh.map(|(_, figures)| figures.clone()).unwrap_or_default()
    }

    /// The page, and the policy for browsers that it comes with.
    #[must_use]
    pub fn html(&self, daemon: &dyn DaemonStatus) -> (String, String) {
        let figures = self.figures(daemon);
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
            ("%HEAD%", escaped(&daemon.summary())),
            ("%RATES%", String::new()),
            ("%USED%", list("used")),
            ("%DENIED%", list("denied")),
            ("%POLICIES%", policies(&figures)),
            ("%SERVERS%", servers(&figures)),
            ("%PEERS%", peers(&figures, &self.nodes(daemon))),
        ];
        let policy = format!(
            "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        (filled(&parts), policy)
    }

    /// A stream of events; `None` when there are as many as there may be.
    #[must_use]
    pub fn events(self: &Arc<Self>, daemon: Arc<dyn DaemonStatus>) -> Option<Events> {
        let place = self.streams.clone().try_acquire_owned().ok()?;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Events { page: self.clone(), daemon, ticks, sent: 0, _place: place })
    }
}

/// The totals that the nodes of the fleet have reported.
#[derive(Debug, Default)]
struct Nodes {
    /// When they were asked last, and whether some have yet to answer.
    asked: Instant,
    is_asking: bool,
    /// When they had answered, and their answers as a list.
    totals: Option<(Instant, Value)>,
}

/// Asks the nodes by running `asking`, unless they are being asked or were just asked.
fn ask(
    nodes: &Arc<Mutex<Nodes>>,
    now: Instant,
    asking: impl Future<Output = Option<(Instant, Value)>> + Send + 'static,
) {
    let mut known = lock(nodes);
    if known.is_asking || now.since(known.asked) < FRESH {
        return;
    }
    (known.asked, known.is_asking) = (now, true);
    drop(known);
    let asker = Asking(nodes.clone());
    tokio::spawn(async move {
        if let Some(figures) = asking.await {
            lock(&asker.0).totals = Some(figures);
        }
    });
}

/// Held by the task that asks the nodes. However the task ends, by a panic or with its runtime, dropping this lets them
/// be asked again.
struct Asking(Arc<Mutex<Nodes>>);

impl Drop for Asking {
    fn drop(&mut self) {
        lock(&self.0).is_asking = false;
    }
}

/// The page with its parts in it. The text is read once from front to back, so a part that happens to look like a mark
/// is not replaced.
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

/// Locks the answers of nodes. No code panics while it changes them.
fn lock(nodes: &Mutex<Nodes>) -> MutexGuard<'_, Nodes> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What the page shows of a node: sums over all its policies, without the policies' names.
fn totals(node: &Value) -> Value {
    let top = &node["top"];
    let sum = |field: &str| {
        let asked = |policy: &&Value| policy["name"].as_str().is_some_and(|name| !name.ends_with(ON_TRIAL));
        let policies = top["policies"].as_array().into_iter().flatten().filter(asked);
        policies.filter_map(|policy| policy[field].as_u64()).fold(0, u64::saturating_add)
    };
    let is_up = |server: &Value| server["up"] == true;
    json!({
        "node": node["node"],
        "away": node["away"] == true,
        "problem": node["problem"],
        "at_ms": top["at_ms"],
        "uptime_ms": top["uptime_ms"],
        "allowed": top.is_object().then(|| sum("allowed")),
        "denied": top.is_object().then(|| sum("denied")),
        "keys": top["keys"],
        "store_up": top["store"]["servers"].as_array().map(|servers| servers.iter().all(is_up)),
    })
}

fn peers(figures: &Value, nodes: &Value) -> String {
    match figures["fleet"]["peers"].as_array() {
        Some(list) => rows(
            &["Node", "State", "Address", "Owns", "Admitted", "Denied", "Keys", "Store", "Problem"],
            list,
            |peer| {
                let of_node = nodes
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|node| node["node"] == peer["name"])
                    .unwrap_or(&Value::Null);
                let store = match of_node["store_up"].as_bool() {
                    Some(true) => "up".to_owned(),
                    Some(false) => "AWAY".to_owned(),
                    None => NOTHING.to_owned(),
                };
                let of_peer = ["name", "state", "address", "owns"].map(|field| text(&peer[field]));
                let numbers = ["allowed", "denied", "keys"].map(|field| text(&of_node[field]));
                of_peer.into_iter().chain(numbers).chain([store, text(&of_node["problem"])]).collect()
            },
        ),
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
    daemon: Arc<dyn DaemonStatus>,
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
            let _ = write!(text, "event: history\ndata: {}\n\n", self.daemon.state().history.json());
        }
        let _ = write!(text, "event: top\ndata: {}\n\n", self.page.figures(&*self.daemon));
        let nodes = self.page.nodes(&*self.daemon);
        if !nodes.is_null() {
            let _ = write!(text, "event: fleet\ndata: {nodes}\n\n");
        }
        self.sent += 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_and_peers_are_called_is_no_markup() {
        let figures = json!({
            "policies": [{"name": "<script>", "allowed": 1}],
            "fleet": {"peers": [{"name": "a\"b'&\u{7}", "state": "up", "address": "x", "owns": 30}]},
        });
        assert!(policies(&figures).contains("<td class=t>&lt;script&gt;"), "{}", policies(&figures));
        let nodes =
            json!([{"node": "a\"b'&\u{7}", "allowed": 7, "denied": 2, "keys": 5, "store_up": false, "problem": "<b>"}]);
        let page = peers(&figures, &nodes);
        assert!(page.contains("a&quot;b&#39;&amp;\u{fffd}") && page.contains("&lt;b&gt;"), "{page}");
        assert!(page.contains("<td>30<td>7<td>2<td>5<td class=\"t bad\">AWAY"), "{page}");
        assert!(peers(&figures, &Value::Null).contains("<td>30<td>"), "nobody has told anything yet");
    }

    #[test]
    fn of_a_node_that_was_looked_at_sums_are_shown() {
        let policies = json!([{"name": "api", "allowed": 5, "denied": 1}, {"name": "b", "allowed": 6, "denied": 2},
            {"name": format!("api{ON_TRIAL}"), "allowed": 90, "denied": 90}]);
        let answer =
            json!({"node": "a", "told": "totals", "top": {"policies": policies, "keys": 3, "at_ms": 9, "store": null}});
        let seen = totals(&answer);
        assert_eq!((&seen["allowed"], &seen["denied"], &seen["keys"]), (&json!(11), &json!(3), &json!(3)));
        assert!(!seen.to_string().contains("api"), "{seen}");
        let silent = totals(&json!({"node": "b", "away": true, "problem": "no answer in time"}));
        assert_eq!((&silent["allowed"], &silent["away"]), (&Value::Null, &json!(true)));
    }

    /// If asking could not begin again, the page would show no other node from then on.
    #[tokio::test]
    async fn however_the_nodes_were_asked_they_are_asked_again() {
        async fn seen(nodes: &Arc<Mutex<Nodes>>) -> Option<u64> {
            // The runtime has one thread, so the spawned task has ended after this.
            tokio::task::yield_now().await;
            lock(nodes).totals.as_ref().and_then(|(_, figures)| figures.as_u64())
        }
        let (nodes, second) = (Arc::<Mutex<Nodes>>::default(), |number: u64| Instant(number * 1_000_000));
        ask(&nodes, second(1), async { Some((Instant(1), json!(1))) });
        assert_eq!(seen(&nodes).await, Some(1));
        ask(&nodes, second(2), async { panic!("it has a bug") });
        assert_eq!(seen(&nodes).await, Some(1));
        ask(&nodes, second(3), async { None });
        assert_eq!(seen(&nodes).await, Some(1));
        ask(&nodes, second(4), async { Some((Instant(4), json!(4))) });
        assert_eq!(seen(&nodes).await, Some(4));
        // The task is dropped with its runtime.
        let ended = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let asked = nodes.clone();
        let (enter, never) = (ended.handle().clone(), std::future::pending());
        let thread = std::thread::spawn(move || {
            let _inside = enter.enter();
            ask(&asked, second(5), never);
            drop(ended);
        });
        thread.join().expect("it ends, and what it asked with it");
        assert!(!lock(&nodes).is_asking && lock(&nodes).asked == second(5));
        // The nodes are not asked while they are being asked, nor right after.
        ask(&nodes, second(6), async { Some((Instant(6), json!(6))) });
        ask(&nodes, second(7), async { Some((Instant(7), json!(7))) });
        assert_eq!(seen(&nodes).await, Some(6));
        ask(&nodes, second(6), async { Some((Instant(8), json!(8))) });
        assert_eq!(seen(&nodes).await, Some(6));
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
