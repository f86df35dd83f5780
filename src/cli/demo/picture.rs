//! The picture that moves: the fleet on the left, the ledger on the right, what happened and the keys below.

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

use super::ledger::{Window, Worst};
use super::node::Sight;
use super::stage::{Cut, Stage};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(200);
/// Windows that are drawn.
const WINDOWS: usize = 24;
/// Lines of what happened that are kept.
const TOLD: usize = 50;

const KEYS: &str = "k kill a node   a add ten   c cut the store for all   h for half   f flush it   q quit";

/// Draws until somebody has seen enough.
///
/// # Errors
/// The terminal, or a node that does not start.
pub(super) fn show(stage: &mut Stage) -> anyhow::Result<()> {
    // What it was before comes back when this is dropped, by an error or a panic, too.
    let screen = io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut terminal = Terminal::new(TermionBackend::new(screen))?;
    let keys = keys();
    let mut told = VecDeque::from([format!("{} nodes serve", stage.alive())]);
    let mut before: Vec<Window> = Vec::new();
    while !stage.is_over() {
        let view = View::of(stage, &told, &mut before);
        terminal.draw(|frame| view.draw(frame))?;
        match keys.recv_timeout(FRAME) {
            Ok(Key::Char('q') | Key::Esc | Key::Ctrl('c')) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Key::Char(letter)) => told.extend(act(stage, letter)?),
            _ => {}
        }
        while told.len() > TOLD {
            told.pop_front();
        }
    }
    Ok(())
}

/// Keys as they are pressed. The thread that reads them ends with the process: a read cannot be called off.
fn keys() -> Receiver<Key> {
    let (pressed, keys) = mpsc::channel();
    std::thread::spawn(move || io::stdin().keys().map_while(Result::ok).try_for_each(|key| pressed.send(key)));
    keys
}

/// What a key does, in words; `None`: nothing.
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

/// All that is drawn, as plain values.
struct View {
    store: String,
    limit: u64,
    sights: Vec<(Sight, Window)>,
    windows: VecDeque<Window>,
    judged: Vec<Worst>,
    told: Vec<String>,
    sum: String,
}

impl View {
    /// `before`: what each node's clients had been told when it was drawn last.
    fn of(stage: &Stage, told: &VecDeque<String>, before: &mut Vec<Window>) -> Self {
        let now = Stage::now_ms();
        let sights = stage.sights();
        before.resize(sights.len(), Window::default());
        let mut rows = Vec::new();
        let calls: u64 = sights.iter().map(|sight| sight.calls).sum();
        for (index, sight) in sights.into_iter().enumerate() {
            let whole = stage.ledger.of_node(index);
            let (admitted, denied) = (whole.admitted - before[index].admitted, whole.denied - before[index].denied);
            before[index] = whole;
            rows.push((sight, Window { admitted, denied }));
        }
        let waits = stage.ledger.waits();
        let thousands = waits.checks.max(1) as f64 / 1_000.0;
        Self {
            store: stage.store.name.clone(),
            limit: stage.ledger.limit,
            sights: rows,
            windows: stage.ledger.recent(WINDOWS, now),
            judged: stage.ledger.judge(now),
            told: told.iter().cloned().collect(),
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
        let [head, middle, below, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(10),
            Constraint::Length(7),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [left, right] = Layout::horizontal([Constraint::Length(58), Constraint::Min(30)]).areas(middle);
        let [bars, ledger] = Layout::vertical([Constraint::Min(6), Constraint::Length(10)]).areas(right);
        let title =
            Line::from(vec!["rationd demo ".bold(), format!("limit {}, one key; {}", Stage::limit(), self.sum).into()]);
        frame.render_widget(Paragraph::new(vec![title, Line::from(format!("store: {}", self.store))]), head);
        self.draw_nodes(frame, left);
        self.draw_windows(frame, bars);
        self.draw_ledger(frame, ledger);
        let room = usize::from(below.height.saturating_sub(2));
        let lines = self.told.iter().rev().take(room).rev().map(|line| Line::from(line.as_str()));
        frame.render_widget(
            Paragraph::new(lines.collect::<Vec<_>>()).block(Block::bordered().title("what happened")),
            below,
        );
        frame.render_widget(Paragraph::new(KEYS.reversed()), foot);
    }

    fn draw_nodes(&self, frame: &mut Frame<'_>, area: Rect) {
        let per_second = |count: u64| count * 1_000 / u64::try_from(FRAME.as_millis()).unwrap_or(1);
        let rows = self.sights.iter().map(|(sight, asked)| {
            let (state, color) = match (sight.is_alive, sight.is_connected, sight.degraded > 0) {
                (false, ..) => ("killed", Color::Red),
                (_, false, _) => ("cut off", Color::Yellow),
                (_, _, true) => ("share", Color::Yellow),
                _ => ("leases", Color::Green),
            };
            let numbers =
                [u64::from(sight.live), sight.held, per_second(asked.admitted), per_second(asked.denied), sight.calls];
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
        let bars: Vec<_> = self
            .windows
            .iter()
            .map(|window| {
                let color = if window.admitted > self.limit { Color::Red } else { Color::Green };
                Bar::default()
                    .value(window.admitted)
                    .text_value(window.admitted.to_string())
                    .style(Style::new().fg(color))
            })
            .collect();
        let title = format!("admitted in each window, against {} (full height: {})", self.limit, 2 * self.limit);
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

    use super::super::ledger::Promise;
    use super::*;

    #[test]
    fn the_picture_shows_nodes_windows_and_the_ledger() {
        let sight = |name: &str, is_alive, is_connected| Sight {
            name: name.to_owned(),
            is_alive,
            is_connected,
            live: 2,
            held: 17,
            calls: 41,
            degraded: 0,
        };
        let view = View {
            store: "a twin".to_owned(),
            limit: 300,
            sights: vec![
                (sight("node-1", true, true), Window { admitted: 20, denied: 4 }),
                (sight("node-2", true, false), Window::default()),
                (sight("node-3", false, false), Window::default()),
            ],
            windows: [300, 285, 17].map(|admitted| Window { admitted, denied: 0 }).into(),
            judged: vec![Worst { promise: Promise::Whole, windows: 3, most: 300, least: 299, bound: 300 }],
            told: vec!["node-3 is killed".to_owned()],
            sum: "9 checks".to_owned(),
        };
        let mut terminal = Terminal::new(TestBackend::new(130, 40)).expect("a terminal in memory");
        terminal.draw(|frame| view.draw(frame)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let lines: Vec<String> = (0..buffer.area.height)
            .map(|y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>())
            .collect();
        let line = |part: &str| {
            lines
                .iter()
                .find(|line| line.contains(part))
                .unwrap_or_else(|| panic!("{part} is not in {lines:#?}"))
                .clone()
        };
        assert!(line("node-1").contains("leases") && line("node-1").contains("100"), "{lines:#?}");
        assert!(line("node-2").contains("cut off") && line("node-3").contains("killed"), "{lines:#?}");
        assert!(line("300 of 300").contains("a window admits its limit"), "{lines:#?}");
        assert!(line("285").contains("300"), "{lines:#?}");
        line("node-3 is killed");
        line("k kill a node");
    }
}
