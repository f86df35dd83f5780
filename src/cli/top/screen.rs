//! The live view: tables that are drawn anew each second, and keys to sort, filter and pause them.

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
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, Wrap};
use ratatui::{Frame, Terminal};
use serde_json::Value;

use super::daemons::Daemons;
use super::tables::{self, Rows, View};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};

const KEYS: &str = "s sort   / filter   p pause   q quit";

/// Draws until somebody has seen enough.
///
/// # Errors
/// The terminal.
pub(super) fn show(daemons: &mut Daemons, every: Duration, view: View) -> anyhow::Result<()> {
    let mut screen = Screen { view, figures: Value::Null, problem: None, paused: false, typing: false };
    // What it was before comes back when this is dropped, by an error or a panic, too.
    let terminal = io::stdout().into_raw_mode()?.into_alternate_screen()?;
    let mut terminal = Terminal::new(TermionBackend::new(terminal))?;
    let (keys, clock) = (keys(), Clock::start());
    let every = Micros(u64::try_from(every.as_micros()).unwrap_or(u64::MAX));
    // Rates of a short while at first, so that the picture is not empty for longer.
    let mut due: Instant = clock.now() + Micros(every.0.min(300_000));
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        match keys.recv_timeout(Duration::from_micros(due.since(clock.now()).0)) {
            Ok(key) => {
                if !screen.press(key) {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                due = clock.now() + every;
                match daemons.figures() {
                    Ok((figures, problem)) => {
                        screen.problem = problem.map(|problem| problem.message);
                        screen.figures = if screen.paused { screen.figures } else { figures };
                    }
                    Err(problem) => screen.problem = Some(problem.message),
                }
            }
        }
    }
}

/// Keys as they are pressed. The thread that reads them ends with the process: a read cannot be called off.
fn keys() -> Receiver<Key> {
    let (pressed, keys) = mpsc::channel();
    std::thread::spawn(move || io::stdin().keys().map_while(Result::ok).try_for_each(|key| pressed.send(key)));
    keys
}

struct Screen {
    view: View,
    figures: Value,
    /// Why a daemon does not answer.
    problem: Option<String>,
    paused: bool,
    /// What is typed belongs to the filter.
    typing: bool,
}

impl Screen {
    /// Does what a key says; false: the view ends.
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

    fn head(&self) -> Vec<Line<'_>> {
        match (&self.problem, self.figures.is_null()) {
            (Some(problem), _) => {
                // The others go on.
                let told = tables::head(&self.figures).into_iter().take(usize::from(self.figures["daemons"].is_u64()));
                std::iter::once(Line::from(problem.as_str()).fg(Color::Red)).chain(told.map(Line::from)).collect()
            }
            (None, true) => vec![Line::from("rationd top: counting for a moment")],
            (None, false) => tables::head(&self.figures).into_iter().map(Line::from).collect(),
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let (servers, peers) = (tables::servers(&self.figures), tables::peers(&self.figures));
        let policies = self.view.policies(&self.figures);
        let height = |rows: &Rows, most: u16| if rows.len() > 1 { (rows.len() as u16 + 2).min(most) } else { 0 };
        let head = self.head();
        let of_head = head.iter().map(|line| wrapped(&line.to_string(), frame.area().width)).sum();
        let areas = Layout::vertical([
            Constraint::Length(of_head),
            Constraint::Length(height(&policies, 14).max(4)),
            Constraint::Min(6),
            Constraint::Length(height(&servers, 9)),
            Constraint::Length(height(&peers, 9)),
            Constraint::Length(1),
        ]);
        let [above, of_policies, of_keys, of_servers, of_peers, foot] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(head).wrap(Wrap { trim: true }), above);
        let title = format!("policies, by {}", self.view.sort.word());
        draw_table(frame, of_policies, &title, &policies, &[24, 10, 9, 9, 9, 9, 9]);
        let [used, denied] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(of_keys);
        for (area, kind, title) in [(used, "used", "keys by checks"), (denied, "denied", "keys by denials")] {
            draw_table(frame, area, title, &self.view.keys(&self.figures, kind), &[10, 16, 64]);
        }
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

/// Rows that a text takes where no word is cut.
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

/// What a name keeps on a terminal that is too narrow for all columns.
const LEAST_NAME: u16 = 8;

fn draw_table(frame: &mut Frame<'_>, area: Rect, title: &str, rows: &Rows, widths: &[u16]) {
    let Some((head, rows)) = rows.split_first() else { return };
    let rows = rows.iter().map(|row| {
        let style = if row.iter().any(|cell| cell == "AWAY") { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(row.iter().map(String::as_str)).style(style)
    });
    // Figures are whole or of no use, so names make room for them, as far as they may, and then the last column does.
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

    /// As large as terminals are when they are opened.
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
