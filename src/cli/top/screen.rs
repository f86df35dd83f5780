//! The live view: tables that are drawn anew each second, and keys to sort, filter and pause them.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use ratatui::backend::TermionBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::IntoRawMode;
use ratatui::termion::screen::IntoAlternateScreen;
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, Wrap};
use ratatui::{Frame, Terminal};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::super::exit::ExitError;
use super::daemons::Daemons;
use super::tables::{self, Rows, View};

const KEYS: &str = "s sort   / filter   p pause   q quit";

/// What the view waits for.
enum Event {
    Key(Key),
    /// The terminal is gone, or somebody has asked this process to end.
    End,
    /// What the daemons have done, and why one of them, or all, do not answer.
    Figures(Result<(Value, Option<ExitError>), ExitError>),
}

/// Draws until the user or a signal ends it.
///
/// # Errors
/// The terminal.
pub(super) fn show(daemons: Daemons, every: Duration, view: View) -> anyhow::Result<()> {
    let mut screen = Screen { view, figures: Value::Null, problem: None, paused: false, typing: false };
    // The terminal's state is restored when this is dropped, also after an error or a panic.
    let terminal = io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut terminal = Terminal::new(TermionBackend::new(terminal))?;
    let (happens, events) = mpsc::channel();
    watch_signals(happens.clone())?;
    watch_keys(happens.clone());
    watch_figures(daemons, every, happens);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        match events.recv() {
            Ok(Event::Key(key)) if screen.press(key) => {}
            Ok(Event::Figures(figures)) => screen.take(figures),
            Ok(Event::Key(_) | Event::End) | Err(_) => return Ok(()),
        }
    }
}

/// Reports signals that end the process, as from `timeout 60 rationd top`. By default they would end it at once, and
/// leave a terminal behind that shows the last drawing and no typed characters.
fn watch_signals(happens: Sender<Event>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    drop(context);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        let _ = happens.send(Event::End);
    });
    Ok(())
}

/// Reports keys as they are pressed. The thread that reads them ends with the process, because a read cannot be
/// cancelled.
fn watch_keys(happens: Sender<Event>) {
    std::thread::spawn(move || {
        let _ = io::stdin().keys().map_while(Result::ok).try_for_each(|key| happens.send(Event::Key(key)));
        let _ = happens.send(Event::End);
    });
}

/// Reports figures as they come. They have a thread of their own, so that keys work while a daemon does not answer.
fn watch_figures(mut daemons: Daemons, every: Duration, happens: Sender<Event>) {
    std::thread::spawn(move || {
        let (_never, timer) = mpsc::channel::<()>();
        // The first rates are over a short time, so that the view is not empty for longer.
        let mut pause = every.min(Duration::from_millis(300));
        loop {
            let _ = timer.recv_timeout(pause);
            pause = every;
            if happens.send(Event::Figures(daemons.figures())).is_err() {
                return;
            }
        }
    });
}

struct Screen {
    view: View,
    figures: Value,
    /// Why a daemon does not answer.
    problem: Option<String>,
    paused: bool,
    /// Typed characters go to the filter.
    typing: bool,
}

impl Screen {
    /// Does what a key stands for; false ends the view.
    fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Ctrl('c') => return false,
            Key::Char('\n') | Key::Esc if self.typing => {
                self.typing = false;
                if key == Key::Esc {
                    self.view.filter.clear();
                }
            }
            Key::Backspace if self.typing => drop(self.view.filter.pop()),
            Key::Char(letter) if self.typing => self.view.filter.push(letter),
            Key::Char('q') | Key::Esc => return false,
            Key::Char('s') => self.view.sort = self.view.sort.next(),
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('/') => self.typing = true,
            _ => {}
        }
        true
    }

    fn take(&mut self, figures: Result<(Value, Option<ExitError>), ExitError>) {
        match figures {
            Ok((figures, problem)) => {
                self.problem = problem.map(|problem| problem.message);
                if !self.paused {
                    self.figures = figures;
                }
            }
            Err(problem) => self.problem = Some(problem.message),
        }
    }

    fn head(&self) -> Vec<Line<'_>> {
        match (&self.problem, self.figures.is_null()) {
            (Some(problem), _) => {
                // The other daemons still answer.
                let head = tables::head(&self.figures).into_iter().take(usize::from(self.figures["daemons"].is_u64()));
                std::iter::once(Line::from(problem.as_str()).fg(Color::Red)).chain(head.map(Line::from)).collect()
            }
            (None, true) => vec![Line::from("rationd top: counting for a moment")],
            (None, false) => tables::head(&self.figures).into_iter().map(Line::from).collect(),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let (servers, peers) = (tables::servers(&self.figures), tables::peers(&self.figures));
        let daemons = tables::daemons(&self.figures);
        let policies = self.view.policies(&self.figures);
        let height = |rows: &Rows, most: u16| if rows.len() > 1 { (rows.len() as u16 + 2).min(most) } else { 0 };
        let head = self.head();
        let of_head = head.iter().map(|line| wrapped(&line.to_string(), frame.area().width)).sum();
        let for_policies = height(&policies, 14).max(4);
        // The lines left by the key lists and the last line. On a small terminal, a table without room for a row is
        // left out, for the tables before it.
        let mut left = frame.area().height.saturating_sub(of_head + for_policies + LEAST_KEYS + 1);
        let mut fitting = |rows: &Rows, most: u16| {
            let wanted = height(rows, most).min(left);
            let taken = if wanted < LEAST_TABLE { 0 } else { wanted };
            left -= taken;
            taken
        };
        let below = [fitting(&daemons, 12), fitting(&servers, 9), fitting(&peers, 9)].map(Constraint::Length);
        let areas = Layout::vertical([
            Constraint::Length(of_head),
            Constraint::Length(for_policies),
            Constraint::Min(LEAST_KEYS),
            below[0],
            below[1],
            below[2],
            Constraint::Length(1),
        ]);
        let [above, of_policies, of_keys, of_daemons, of_servers, of_peers, foot] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(head).wrap(Wrap { trim: true }), above);
        let title = format!("policies, by {}", self.view.sort.word());
        draw_table(frame, of_policies, &title, &policies, &[24, 10, 9, 9, 9, 9, 9]);
        let [used, denied] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(of_keys);
        for (area, kind, title) in [(used, "used", "keys by checks"), (denied, "denied", "keys by denials")] {
            draw_table(frame, area, title, &self.view.keys(&self.figures, kind), &[10, 16, 64]);
        }
        draw_table(frame, of_daemons, "daemons", &daemons, &[32, 5, 9, 9, 9, 9, 6, 60]);
        draw_table(frame, of_servers, "store", &servers, &[24, 6, 10, 20, 9, 60]);
        draw_table(frame, of_peers, "fleet", &peers, &[24, 10, 24, 14, 10]);
        let filter = match (self.typing, self.view.filter.as_str()) {
            (false, "") => String::new(),
            (typing, filter) => format!("   filter: {filter}{}", if typing { "_" } else { "" }),
        };
        let paused = if self.paused { "   PAUSED" } else { "" };
        frame.render_widget(Paragraph::new(format!("{KEYS}{filter}{paused}").reversed()), foot);
    }
}

/// The rows that a text takes if lines break between words only.
fn wrapped(text: &str, width: u16) -> u16 {
    let (mut rows, mut taken) = (1, 0);
    for word in text.split(' ').map(|word| word.chars().count()) {
        if taken > 0 && taken + 1 + word > usize::from(width) {
            rows += 1;
            taken = word;
        } else {
            taken += word + usize::from(taken > 0);
        }
    }
    rows
}

/// The least lines of the key lists, which take all that the other tables leave.
const LEAST_KEYS: u16 = 6;
/// Lines of a table with a single row: its borders, its head, and the row.
const LEAST_TABLE: u16 = 4;

/// The least width of a column of text on a terminal that is too narrow for all columns.
const LEAST_NAME: u16 = 8;

fn draw_table(frame: &mut Frame<'_>, area: Rect, title: &str, rows: &Rows, widths: &[u16]) {
    let Some((head, rows)) = rows.split_first() else { return };
    let rows = rows.iter().map(|row| {
        let style = if row.iter().any(|cell| cell == "AWAY") { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(row.iter().map(String::as_str)).style(style)
    });
    // A figure that is cut is useless, so only columns of text are cut: first a last column that is wider than the
    // names, then the names, each down to [`LEAST_NAME`].
    let (all, frame_width) = (widths.iter().sum::<u16>() + widths.len() as u16 - 1, 2);
    let missing = (all + frame_width).saturating_sub(area.width);
    let last = widths.len() - 1;
    let of_last = missing.min(widths[last].saturating_sub(LEAST_NAME)) * u16::from(widths[last] > widths[0]);
    let of_name = (missing - of_last).min(widths[0].saturating_sub(LEAST_NAME));
    let widths = widths.iter().enumerate().map(|(index, width)| match index {
        0 => Constraint::Length(width - of_name),
        _ if index == last => Constraint::Length(width - of_last),
        _ => Constraint::Length(*width),
    });
    let table = Table::new(rows, widths)
        .header(Row::new(head.iter().map(String::as_str)).bold())
        .block(Block::bordered().title(title.to_owned()));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::super::super::exit::Code;
    use super::super::figures::{between, tests::answer};
    use super::super::sort::Sort;
    use super::*;

    fn screen() -> Screen {
        let mut figures = between(&answer(1_000, 0, 0, 0), &answer(2_000, 50, 5, 3));
        figures["store"]["servers"][0]["up"] = Value::Bool(false);
        let view = View { sort: Sort::Rate, filter: String::new() };
        Screen { view, figures, problem: None, paused: false, typing: false }
    }

    fn lines(screen: &Screen) -> String {
        lines_of(screen, 140, 40)
    }

    fn lines_of(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| screen.draw(frame)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_picture_shows_policies_keys_and_servers() {
        let drawn = lines(&screen());
        for part in ["policies, by checks", "api", "keys by checks", "other", "10.0.0.9:6379", "AWAY", KEYS] {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
    }

    /// The size is that of a terminal as it is opened.
    #[test]
    fn a_small_terminal_cuts_no_figure() {
        let mut screen = screen();
        screen.figures["policies"][0]["name"] = "checkout (candidate)".into();
        let drawn = lines_of(&screen, 80, 24);
        let parts = [
            "0.0 errors/s",
            "1 SERVERS AWAY",
            "checkout (candi",
            "SHARE",
            "ADMITTED/S",
            "10.0.0.9:6379",
            "AWAY",
            "closed",
            "1 of 16, 0 wait",
            KEYS,
        ];
        for part in parts {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
        assert_eq!((wrapped("one two", 7), wrapped("one two", 6), wrapped("", 6), wrapped("longer", 3)), (1, 2, 1, 1));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_told_beside_the_others() {
        let mut screen = screen();
        screen.problem = Some("no daemon answers on b.sock".into());
        let drawn = lines(&screen);
        assert!(drawn.contains("b.sock") && !drawn.contains("checks/s, half"), "the only one:\n{drawn}");
        screen.figures["daemons"] = 2.into();
        let drawn = lines(&screen);
        assert!(drawn.contains("b.sock") && drawn.contains("2 daemons of rationd 0.1.0"), "{drawn}");
    }

    /// Each of several daemons has a row, and one that is lost stands out.
    #[test]
    fn each_of_several_daemons_has_a_row() {
        let mut screen = screen();
        let row = serde_json::json!({"socket": "fleet/a.sock", "checks_per_s": 50, "denied_per_s": 2.5, "p99_us": 50, "keys": 7, "store_up": true, "problem": null});
        let lost = serde_json::json!({"socket": "fleet/b.sock", "problem": "no daemon answers on fleet/b.sock"});
        (screen.figures["daemons"], screen.figures["by_daemon"]) = (1.into(), vec![row, lost].into());
        screen.take(Ok((screen.figures.clone(), Some(ExitError::new(Code::DaemonUnreachable, "lost")))));
        let drawn = lines(&screen);
        for part in ["lost", "1 OF 2 daemons", "daemons", "fleet/a.sock", "2.5", "fleet/b.sock", "AWAY"] {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
    }

    /// With room for one table only, that one is shown whole and the others are left out, because tables without rows
    /// say nothing.
    #[test]
    fn a_small_terminal_shows_of_a_fleet_who_is_there() {
        let mut screen = screen();
        let row = |socket: String| serde_json::json!({"socket": socket, "checks_per_s": 50, "store_up": true, "problem": null});
        screen.figures["by_daemon"] = ('a'..='c').map(|name| row(format!("{name}.sock"))).collect();
        screen.figures["daemons"] = 3.into();
        let drawn = lines_of(&screen, 80, 24);
        for part in ["a.sock", "b.sock", "c.sock", "acct", KEYS] {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
        assert!(!drawn.contains("BREAKER"), "{drawn}");
        assert!(lines_of(&screen, 80, 40).contains("10.0.0.9:6379"));
    }

    #[test]
    fn what_is_paused_stays_and_who_is_lost_is_told() {
        let mut screen = screen();
        assert!(screen.press(Key::Char('p')));
        let before = screen.figures.clone();
        screen.take(Ok((Value::Null, None)));
        assert_eq!((&screen.figures, &screen.problem), (&before, &None));
        screen.take(Err(ExitError::new(Code::DaemonUnreachable, "gone")));
        assert_eq!((&screen.figures, screen.problem.as_deref()), (&before, Some("gone")));
    }

    #[test]
    fn keys_sort_filter_pause_and_end() {
        let mut screen = screen();
        assert!(screen.press(Key::Char('s')) && lines(&screen).contains("policies, by denials"));
        assert!("/oth".chars().all(|letter| screen.press(Key::Char(letter))));
        let drawn = lines(&screen);
        assert!(drawn.contains("filter: oth_") && drawn.contains("other") && !drawn.contains("acct"), "{drawn}");
        assert!(screen.press(Key::Char('q')), "a letter of the filter ends nothing");
        assert!(screen.press(Key::Esc) && screen.view.filter.is_empty() && !screen.typing);
        assert!(screen.press(Key::Char('p')) && lines(&screen).contains("PAUSED"));
        assert!(!screen.press(Key::Char('q')));
    }
}
