//! The live view: the fleet on the left, the ledger on the right, recent events and the keys below.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use ratatui::backend::TermionBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::IntoRawMode;
use ratatui::termion::screen::IntoAlternateScreen;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Bar, BarChart, BarGroup, Block, Cell, Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use super::ledger::{Promise, Window, Worst};
use super::node::Sight;
use super::stage::{Cut, Stage};

/// Time between two drawings.
const FRAME: Duration = Duration::from_millis(200);
/// Windows that are drawn.
const WINDOWS: usize = 24;
/// Recent events that are kept.
const MOST_NEWS: usize = 50;

/// Columns that a bar takes with the gap beside it, and a frame.
const BAR: u16 = 4;
const FRAMES: u16 = 2;
/// Columns of the table of nodes.
const NODES: u16 = 60;
/// A narrower terminal has no room for the ledger's words beside the nodes.
const WIDE: u16 = 140;
/// A lower terminal has room for one recent event.
const HIGH: u16 = 32;

/// A terminal of 80 columns has room for it.
const KEYS: &str = "k kill a node  a add ten  c cut off the store  h for half  f flush it  q quit";

/// Draws until the user or a signal ends it.
///
/// # Errors
/// The terminal, or a node that does not start.
pub(super) fn show(stage: &mut Stage) -> anyhow::Result<()> {
    // The terminal's state is restored when this is dropped, also after an error or a panic.
    let screen = io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut terminal = Terminal::new(TermionBackend::new(screen))?;
    let keys = keys();
    let mut news = VecDeque::from([format!("{} nodes serve", stage.alive())]);
    let mut rates = Rates::default();
    while !stage.is_over() {
        let view = View::of(stage, &news, &mut rates);
        terminal.draw(|frame| view.draw(frame))?;
        match keys.recv_timeout(FRAME) {
            Ok(Key::Char('q') | Key::Esc | Key::Ctrl('c')) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Key::Char(letter)) => news.extend(act(stage, letter)?),
            _ => {}
        }
        while news.len() > MOST_NEWS {
            news.pop_front();
        }
    }
    Ok(())
}

/// Keys as they are pressed. The thread that reads them ends with the process, because a read cannot be cancelled.
fn keys() -> Receiver<Key> {
    let (pressed, keys) = mpsc::channel();
    std::thread::spawn(move || io::stdin().keys().map_while(Result::ok).try_for_each(|key| pressed.send(key)));
    keys
}

/// Does what a key stands for, and returns that in words; `None` for other keys.
fn act(stage: &mut Stage, letter: char) -> anyhow::Result<Option<String>> {
    Ok(Some(match letter {
        'k' => stage.kill().map_or("the last node is not killed".to_owned(), |name| format!("{name} is killed")),
        'a' => format!("{} nodes join", stage.add(10)?),
        'c' | 'h' => {
            let whom = if letter == 'c' { Cut::All } else { Cut::Half };
            if stage.cut == Some(whom) {
                stage.heal();
                "the store is back for all".to_owned()
            } else {
                format!("the store is cut off from {} of {} nodes", stage.cut(whom), stage.alive())
            }
        }
        'f' => {
            stage.flush()?;
            "the store loses everything".to_owned()
        }
        _ => return Ok(None),
    }))
}

/// The counts of each node at recent drawings, for rates over the last second. A window's tokens may all be spent
/// within a tenth of it, so rates over a shorter time would show a multiple of the limit, or nothing.
#[derive(Debug, Default)]
struct Rates {
    /// Counts with their times in milliseconds; the first is at least a second old, once there is such a one.
    drawn: VecDeque<(u64, Vec<Window>)>,
}

impl Rates {
    /// Takes the counts of each node at `now`, and returns rates over the last second.
    fn per_second(&mut self, now: u64, whole: Vec<Window>) -> Vec<Window> {
        while self.drawn.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= 1_000) {
            self.drawn.pop_front();
        }
        self.drawn.push_back((now, whole));
        let (first, next) = (&self.drawn[0], &self.drawn[1.min(self.drawn.len() - 1)]);
        let since = now.saturating_sub(1_000).max(first.0);
        // Drawings come at uneven times, so the counts of a second ago are interpolated between two of them.
        let (past, span) = (since - first.0, next.0.saturating_sub(first.0).max(1));
        let between = |first: u64, next: u64| first + next.saturating_sub(first) * past.min(span) / span;
        let millis = now.saturating_sub(since).max(1);
        let rate = |first, next, now: u64| (now.saturating_sub(between(first, next)) * 1_000 + millis / 2) / millis;
        let of = |drawn: &(u64, Vec<Window>), index: usize| drawn.1.get(index).copied().unwrap_or_default();
        let each = self.drawn[self.drawn.len() - 1].1.iter().enumerate().map(|(index, now)| {
            // A node that has joined since had no counts then.
            let (first, next) = (of(first, index), of(next, index));
            Window {
                admitted: rate(first.admitted, next.admitted, now.admitted),
                denied: rate(first.denied, next.denied, now.denied),
            }
        });
        each.collect()
    }
}

/// Everything that is drawn, as plain values.
struct View {
    store: String,
    limit: u64,
    /// Each node, with its rates.
    sights: Vec<(Sight, Window)>,
    windows: VecDeque<Window>,
    judged: Vec<Worst>,
    news: Vec<String>,
    sum: String,
}

impl View {
    fn of(stage: &Stage, news: &VecDeque<String>, rates: &mut Rates) -> Self {
        let now = Stage::now_ms();
        let sights = stage.sights();
        let calls: u64 = sights.iter().map(|sight| sight.calls).sum();
        let whole = (0..sights.len()).map(|index| stage.ledger.of_node(index)).collect();
        let rows = sights.into_iter().zip(rates.per_second(now, whole)).collect();
        let waits = stage.ledger.waits();
        let thousands = waits.checks.max(1) as f64 / 1_000.0;
        Self {
            store: stage.store.name.clone(),
            limit: stage.ledger.limit,
            sights: rows,
            windows: stage.ledger.recent(WINDOWS, now),
            judged: stage.ledger.judge(now),
            news: news.iter().cloned().collect(),
            sum: format!(
                "{} checks, {:.0} store calls per 1000, half within {} us, 99 % within {} us",
                waits.checks,
                calls as f64 / thousands,
                waits.median_us,
                waits.p99_us
            ),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let news = if area.height < HIGH { 3 } else { 7 };
        let of_ledger = 2 + u16::try_from(Promise::ALL.len()).unwrap_or(u16::MAX);
        let [head, middle, below, foot] = Layout::vertical([
            Constraint::Length(if area.width < WIDE { 3 } else { 2 }),
            Constraint::Min(10),
            Constraint::Length(news),
            Constraint::Length(1),
        ])
        .areas(area);
        let beside = |area| Layout::horizontal([Constraint::Length(NODES), Constraint::Min(10)]).areas(area);
        let (left, bars, ledger) = if area.width < WIDE {
            let [above, ledger] = Layout::vertical([Constraint::Min(6), Constraint::Length(of_ledger)]).areas(middle);
            let [left, bars] = beside(above);
            (left, bars, ledger)
        } else {
            let [left, right] = beside(middle);
            let [bars, ledger] = Layout::vertical([Constraint::Min(6), Constraint::Length(of_ledger)]).areas(right);
            (left, bars, ledger)
        };
        let title = |rest: String| {
            Line::from(vec!["rationd demo ".bold(), format!("limit {}, one key{rest}", Stage::limit()).into()])
        };
        let store = Line::from(format!("store: {}", self.store));
        let lines = if area.width < WIDE {
            vec![title(String::new()), store, Line::from(self.sum.as_str())]
        } else {
            vec![title(format!("; {}", self.sum)), store]
        };
        frame.render_widget(Paragraph::new(lines), head);
        self.draw_nodes(frame, left);
        self.draw_windows(frame, bars);
        self.draw_ledger(frame, ledger);
        let room = usize::from(below.height.saturating_sub(2));
        let lines = self.news.iter().rev().take(room).rev().map(|line| Line::from(line.as_str()));
        frame.render_widget(
            Paragraph::new(lines.collect::<Vec<_>>()).block(Block::bordered().title("what happened")),
            below,
        );
        frame.render_widget(Paragraph::new(KEYS.reversed()), foot);
    }

    fn draw_nodes(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.sights.iter().map(|(sight, asked)| {
            let (state, color) = match (sight.is_alive, sight.is_connected, sight.degraded > 0) {
                (false, ..) => ("killed", Color::Red),
                (_, false, _) => ("cut off", Color::Yellow),
                (_, _, true) => ("share", Color::Yellow),
                _ => ("leases", Color::Green),
            };
            let numbers = [u64::from(sight.live), sight.held, asked.admitted, asked.denied, sight.calls];
            let cells = numbers.map(|number: u64| if sight.is_alive { number.to_string() } else { String::new() });
            let cells = [Cell::from(sight.name.clone()), Cell::from(Span::styled(state, Style::new().fg(color)))]
                .into_iter()
                .chain(cells.map(Cell::from));
            Row::new(cells.collect::<Vec<_>>())
        });
        let widths = [8, 8, 5, 6, 9, 9, 7].map(Constraint::Length);
        let head = Row::new(["node", "", "sees", "holds", "admits/s", "denies/s", "calls"]).bold();
        let block = Block::bordered().title("fleet");
        frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
    }

    fn draw_windows(&self, frame: &mut Frame<'_>, area: Rect) {
        // Bars that do not fit are left out at the right, where the latest stand.
        let fit = usize::from((area.width.saturating_sub(FRAMES) + 1) / BAR);
        let bars: Vec<_> = self
            .windows
            .iter()
            .skip(self.windows.len().saturating_sub(fit))
            .map(|window| {
                let color = if window.admitted > self.limit { Color::Red } else { Color::Green };
                Bar::default()
                    .value(window.admitted)
                    .text_value(window.admitted.to_string())
                    .style(Style::new().fg(color))
            })
            .collect();
        let title = match area.width {
            ..56 => format!("windows, of {}", self.limit),
            _ => format!("admitted in each window, against {} (full height: {})", self.limit, 2 * self.limit),
        };
        let chart = BarChart::default()
            .data(BarGroup::default().bars(&bars))
            .bar_width(3)
            .bar_gap(1)
            .max(2 * self.limit)
            .block(Block::bordered().title(title));
        frame.render_widget(chart, area);
    }

    fn draw_ledger(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.judged.iter().map(|worst| {
            let color = if worst.is_kept() { Color::Green } else { Color::Red };
            let figure = format!("{} of {}", worst.most, worst.bound);
            let cells = [Cell::from(Span::styled(figure, Style::new().fg(color))), Cell::from(worst.promise.words())];
            Row::new(cells)
        });
        let block = Block::bordered().title("ledger: the worst window, of what may be");
        frame.render_widget(Table::new(rows, [Constraint::Length(11), Constraint::Min(20)]).block(block), area);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn view() -> View {
        let sight = |name: &str, is_alive, is_connected| Sight {
            name: name.to_owned(),
            is_alive,
            is_connected,
            live: 2,
            held: 17,
            calls: 41,
            degraded: 0,
        };
        View {
            store: "a twin".to_owned(),
            limit: 300,
            sights: vec![
                (sight("node-1", true, true), Window { admitted: 100, denied: 20 }),
                (sight("node-2", true, false), Window::default()),
                (sight("node-13", false, false), Window::default()),
            ],
            windows: (0..24).map(|number| Window { admitted: 270 + number, denied: 0 }).collect(),
            judged: Promise::ALL.map(|promise| Worst { promise, windows: 3, most: 300, least: 299, bound: 300 }).into(),
            news: vec!["node-3 joins".to_owned(), "node-13 is killed".to_owned()],
            sum: "137816 checks, 117 store calls per 1000, half within 199 us, 99 % within 1627 us".to_owned(),
        }
    }

    fn drawn(width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| view().draw(frame)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(line).collect()
    }

    /// The sizes are those of a terminal as it is opened, of a full screen, and of the picture in the manual.
    #[test]
    fn the_picture_shows_nodes_windows_and_the_ledger_on_terminals_of_all_sizes() {
        for (width, height) in [(80, 24), (120, 30), (130, 40), (150, 40), (200, 60)] {
            let lines = drawn(width, height);
            let line = |part: &str| {
                let found = lines.iter().find(|line| line.contains(part));
                found.unwrap_or_else(|| panic!("{part} is not in {lines:#?}")).clone()
            };
            assert!(line("node-1 ").contains("leases   2     17     100       20        41"), "{lines:#?}");
            assert!(line("node-2").contains("cut off") && line("node-13 ").contains("killed"), "{lines:#?}");
            line("admits/s  denies/s  calls");
            for promise in Promise::ALL {
                assert!(line(promise.words()).contains("300 of 300"), "{lines:#?}");
            }
            // The latest windows show what the last key press did, so they must be visible.
            assert!(line("293").contains("292 293"), "{lines:#?}");
            line("a twin");
            line("99 % within 1627 us");
            line("node-13 is killed");
            assert!(line("k kill a node").contains("q quit"), "{lines:#?}");
        }
    }

    /// A regression: 12 nodes that spend all of a window's tokens in its first tenth were shown to admit 1,200 a second
    /// under a limit of 300.
    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut rates = Rates::default();
        // A window's 30 tokens are spent within 200 ms of it; a key that is pressed draws at once.
        let news = |at: u64| Window { admitted: (at / 1_000) * 30 + (at % 1_000).min(200) * 30 / 200, denied: at / 10 };
        let mut drawn = Vec::new();
        for at in (0..4_000).step_by(230).chain([4_010, 4_200]) {
            drawn.push(rates.per_second(at, vec![news(at)])[0]);
        }
        for window in &drawn[6..] {
            // A second ago lies between two drawings, and the interpolation between them is not exact.
            assert!((24..=38).contains(&window.admitted) && (99..=101).contains(&window.denied), "{drawn:?}");
        }
        let joined = rates.per_second(4_400, vec![news(4_400), Window { admitted: 50, denied: 0 }]);
        assert_eq!(joined.len(), 2);
        assert!(joined[1].admitted <= 50, "{joined:?}");
    }
}
