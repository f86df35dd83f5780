//! What the daemon says of its commands: the table that `COMMAND` answers from, and errors that name the next step.

use crate::support;

use rationd::wire::command::Command;
use rationd::wire::command_error::CommandError;
use rationd::wire::command_table::{COMMANDS, usage};
use rationd::wire::resp::Parser;
use rationd::wire::value::Value;
use support::daemon::{TestDaemon, show};

/// Whether a command of that name and so many arguments, its name among them, is known and has as many as it may.
fn fits(name: &str, count: usize) -> bool {
    let line = format!("{name}{}\r\n", " 1".repeat(count - 1));
    let mut parser = Parser::new();
    parser.parse(line.as_bytes()).expect("a line").expect("a whole one");
    let parsed = Command::parse(parser.args(line.as_bytes()));
    !matches!(parsed, Err(CommandError::Unknown(_) | CommandError::Arity(_) | CommandError::ThrottleUsage))
}

#[test]
fn the_table_has_each_command_with_as_many_arguments_as_it_takes() {
    for command in COMMANDS {
        let least = command.arity.unsigned_abs() as usize;
        assert!(fits(command.name, least), "{} of {least}", command.name);
        assert!(least == 1 || !fits(command.name, least - 1), "{} of {}", command.name, least - 1);
        assert!(command.arity < 0 || !fits(command.name, least + 1), "{} of {}", command.name, least + 1);
    }
    for name in
        ["RELOAD", "KEYS", "POLICIES", "PEERS", "STATS", "TOP", "DENIALS", "LEASE", "RETURN", "SETTLE", "EXPLAIN"]
    {
        let name = format!("ration.{}", name.to_lowercase());
        assert!(COMMANDS.iter().any(|command| command.name == name), "{name}");
    }
}

#[test]
fn a_command_is_written_as_its_arguments_say() {
    for (name, wanted) in [
        ("cl.throttle", "CL.THROTTLE key max_burst count period [quantity]"),
        ("Ration.Check", "RATION.CHECK policy key [COST cost] [PEEK]"),
        ("ration.mcheck", "RATION.MCHECK count policy key cost [policy key cost ...]"),
        ("hello", "HELLO [protover] [AUTH username password] [SETNAME clientname]"),
    ] {
        assert_eq!(usage(name.as_bytes()).as_deref(), Some(wanted));
    }
    assert_eq!((usage(b"multi"), usage(b"no.such")), (None, None));
}

#[test]
fn errors_name_the_next_step() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for (line, step) in [
        ("RATION.CHEK api k", "(did you mean RATION.CHECK?)"),
        ("THROTLE k 15 30 60", "(did you mean THROTTLE?)"),
        ("GET k", "(COMMAND LIST names all there are)"),
        ("RATION.CHECK api", ": RATION.CHECK policy key [COST cost] [PEEK]"),
        ("RATION.CHECK api k COST", ": RATION.CHECK policy key [COST cost] [PEEK]"),
        ("RATION.REFUND api k", ": RATION.REFUND policy key cost"),
        ("ECHO", ": ECHO message"),
        ("AUTH", ": AUTH [username] password"),
        ("EVAL x", ": EVAL script numkeys key argument [argument ...]"),
        ("SELECT 1", ": 0 is the only one"),
        ("HELLO 4", ": HELLO 2 and HELLO 3 are understood"),
        ("CLIENT", ": CLIENT HELP says how"),
        ("CONFIG GET", ": CONFIG HELP says how"),
        ("CLIENT KILL", "Try CLIENT HELP."),
        ("COMMAND NONE", "Try COMMAND HELP."),
        ("CONFIG SET a b", "Try CONFIG HELP."),
        ("SCRIPT KILL", "Try SCRIPT HELP."),
        ("SCRIPT LOAD return_1", "use CL.THROTTLE or RATION.CHECK instead"),
        ("EVALSHA 0 0 0", "Please use EVAL."),
        ("RATION.CHECK apii k", "did you mean 'api'?"),
    ] {
        let answer = client.ask(line);
        assert!(answer.starts_with('-') && answer.ends_with(step), "{line}: {answer}");
    }
}

#[test]
fn what_an_error_says_to_try_can_be_tried() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for (line, has) in [
        ("CLIENT HELP", "SETNAME <name>"),
        ("COMMAND HELP", "LIST"),
        ("CONFIG HELP", "GET <name> ..."),
        ("SCRIPT HELP", "LOAD <script>"),
        ("COMMAND LIST", "ration.peers"),
    ] {
        let answer = client.ask_bytes(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        let lines = answer.as_array().unwrap_or_else(|| panic!("{line}: {answer:?}"));
        assert!(lines.iter().any(|said| show(said) == has), "{line}: {answer:?}");
    }
}

#[test]
fn several_arguments_that_come_again_are_described_as_one_block() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let docs = client.ask_bytes(&[b"COMMAND", b"DOCS", b"ration.mcheck"]);
    let fields = docs.as_array().and_then(|docs| docs[1].as_array()).expect("a map, flat in RESP2");
    let arguments = fields.last().and_then(Value::as_array).expect("arguments");
    let parts = ["policy", "key", "cost"].map(|name| format!("name {name} type string")).join(" ");
    assert_eq!(show(&arguments[1]), format!("name policy key cost type block flags multiple arguments {parts}"));
}
