//! The frame of a page, and text that is safe in it. Everything a user may have written goes through
//! [`escape`]; the rest of the report is our own.

use std::fmt::Write as _;

/// Colours, widths and the grid, for light and dark.
const STYLE: &str = include_str!("page.css");

/// Text as HTML shows it, in content and in quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// A whole page that needs nothing but itself.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// A part that can be opened, with text as it is.
pub(super) fn folded(title: &str, text: &str) -> String {
    format!("<details><summary>{}</summary><pre>{}</pre></details>\n", escape(title), escape(text))
}

/// A list of sentences; nothing when there are none.
pub(super) fn list(class: &str, sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let mut html = format!("<ul class=\"{class}\">\n");
    for sentence in sentences {
        let _ = writeln!(html, "<li>{}</li>", escape(sentence));
    }
    html + "</ul>\n"
}

/// A table that scrolls by itself on a narrow screen. The cells are HTML.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead><tr>");
    for cell in head {
        let _ = write!(html, "<th>{cell}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{cell}</td>");
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody></table></div>\n"
}

/// The mark of a run or an expectation: a word beside the colour.
pub(super) fn verdict(good: bool) -> &'static str {
    if good { "<span class=\"good\">✓ holds</span>" } else { "<span class=\"bad\">✗ fails</span>" }
}
