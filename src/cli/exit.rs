//! The exit codes of commands, and an error that carries one.

use std::fmt;
use std::process::ExitCode;

/// Exit codes. They are part of the documented interface; `System` is `EX_OSERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    /// Limited. For `doctor`: something is wrong. For `config diff`: there is a difference. For `demo --script`: a
    /// promise was broken.
    No = 1,
    Usage = 2,
    DaemonUnreachable = 69,
    System = 71,
    StoreUnreachable = 75,
    BadConfig = 78,
}

/// Why a command failed, and its exit code.
#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl ExitError {
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn the_page_of_the_command_line_has_every_code() {
        let page = include_str!("../../docs/reference/command-line.md");
        let rows = page.lines().skip_while(|line| *line != "| exit code | meaning |").skip(2);
        let rows = rows.map_while(|row| row.strip_prefix("| ")?.split_once(" |")?.0.parse().ok());
        let all = [
            Code::Ok,
            Code::No,
            Code::Usage,
            Code::DaemonUnreachable,
            Code::System,
            Code::StoreUnreachable,
            Code::BadConfig,
        ];
        assert_eq!(rows.collect::<Vec<u8>>(), all.map(|code| code as u8));
    }
}
