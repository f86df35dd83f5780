//! What a daemon tells at `/metrics`: read over plain HTTP, parsed from the Prometheus text format.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The samples of one scrape, by name with labels as they were written.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

/// Asks `address` for its metrics.
///
/// # Panics
/// When the answer is not 200 within two seconds.
#[must_use]
pub fn scrape(address: SocketAddr) -> Metrics {
    let (status, body) = get(address, "/metrics");
    assert_eq!(status, 200, "{body}");
    parse(&body)
}

/// Asks `address` for `path`: status and body.
///
/// # Panics
/// When there is no answer within ten seconds: a machine that is busy with other things takes its time.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the admin address accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out is not zero");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("a request goes out");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes whole");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head ends with an empty line");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status line");
    (status, body.to_owned())
}

/// Parses the text format; comments are dropped.
fn parse(text: &str) -> Metrics {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("a number was wanted in {line:?}")))
    };
    Metrics(lines.map(sample).collect())
}

impl Metrics {
    /// The sum over all samples called `name` whose labels contain each of `labels`, written
    /// like `op="acquire"`.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.0
            .iter()
            .filter(|(sample, _)| sample.split('{').next() == Some(name))
            .filter(|(sample, _)| labels.iter().all(|label| sample.contains(label)))
            .map(|(_, value)| value)
            .sum()
    }

    /// Whether any sample is called `name`: a sum of nothing is zero, which proves nothing.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.keys().any(|sample| sample.split('{').next() == Some(name))
    }
}
