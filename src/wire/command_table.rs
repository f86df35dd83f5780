//! The table of commands, for `COMMAND`, `COMMAND DOCS` and the hints of `redis-cli`.
//!
//! It only describes commands; other files decide what they do. Called by the daemon's sessions.

use super::help::HELP;
use super::reply::Writer;

/// One command, as clients see it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Number of arguments including the name; a negative number means at least so many.
    pub arity: i64,
    /// Position of the key among the arguments; 0 when there is none.
    pub key: i64,
    /// A description in one line.
    pub summary: &'static str,
    /// The arguments, for hints.
    pub arguments: &'static [Argument],
}

/// Name, type and token ("" for none) of an argument. The name of an optional argument ends with `?`, that of one
/// that may be repeated with `+`. A `block` is named by the arguments in it.
pub type Argument = (&'static str, &'static str, &'static str);

const fn plain(name: &'static str, arity: i64, summary: &'static str) -> Description {
    with(name, arity, summary, &[])
}

/// A command without a key.
const fn with(name: &'static str, arity: i64, summary: &'static str, arguments: &'static [Argument]) -> Description {
    Description { name, arity, key: 0, summary, arguments }
}

/// The arguments of a command with subcommands.
const SUBCOMMAND: &[Argument] = &[("subcommand?", "string", ""), ("argument?+", "string", "")];

/// The arguments of a token bucket.
const BUCKET: &[Argument] = &[
    ("key", "key", ""),
    ("max_burst", "integer", ""),
    ("count", "integer", ""),
    ("period", "integer", ""),
    ("quantity?", "integer", ""),
];

/// Every command.
pub const COMMANDS: &[Description] = &[
    Description {
        name: "cl.throttle",
        arity: -5,
        key: 1,
        summary: "Checks and charges a token bucket given by numbers; answers redis-cell's five integers.",
        arguments: BUCKET,
    },
    Description {
        name: "ration.check",
        arity: -3,
        key: 2,
        summary: "Checks and charges a key under a policy; answers a decision.",
        arguments: &[
            ("policy", "string", ""),
            ("key", "key", ""),
            ("cost?", "integer", "COST"),
            ("peek?", "pure-token", "PEEK"),
        ],
    },
    Description {
        name: "throttle",
        arity: -5,
        key: 1,
        summary: "The same with max_burst for a limit; answers throttlecrab's five integers.",
        arguments: BUCKET,
    },
    Description {
        name: "ration.mcheck",
        arity: -5,
        key: 3,
        summary: "Checks and charges several keys, all of them or none; answers their decisions.",
        arguments: &[("count", "integer", ""), ("policy key cost+", "block", "")],
    },
    Description {
        name: "ration.headers",
        arity: -3,
        key: 2,
        summary: "Checks and charges a key; answers header fields ready to send.",
        arguments: &[
            ("policy", "string", ""),
            ("key", "key", ""),
            ("cost?", "integer", "COST"),
            ("draft|x|github?", "string", "STYLE"),
        ],
    },
    Description {
        name: "ration.hold",
        arity: -4,
        key: 2,
        summary: "Charges an estimate; answers a decision and the id to settle it by.",
        arguments: &[("policy", "string", ""), ("key", "key", ""), ("cost", "integer", ""), ("ms?", "integer", "TTL")],
    },
    Description {
        name: "ration.settle",
        arity: 3,
        key: 0,
        summary: "Settles a hold by what it really cost; answers what stands charged.",
        arguments: &[("id", "string", ""), ("actual_cost", "integer", "")],
    },
    Description {
        name: "ration.lease",
        arity: 4,
        key: 2,
        summary: "Lends tokens that the client spends by itself; answers how many, for how many ms, and a decision.",
        arguments: &[("policy", "string", ""), ("key", "key", ""), ("want", "integer", "")],
    },
    Description {
        name: "ration.return",
        arity: 4,
        key: 2,
        summary: "Hands back what is left of a lease.",
        arguments: &[("policy", "string", ""), ("key", "key", ""), ("tokens", "integer", "")],
    },
    Description {
        name: "ration.explain",
        arity: 3,
        key: 2,
        summary: "Says why a key is limited, or would be, as JSON; charges nothing.",
        arguments: &[("policy", "string", ""), ("key", "key", "")],
    },
    Description {
        name: "ration.refund",
        arity: 4,
        key: 2,
        summary: "Gives a cost back.",
        arguments: &[("policy", "string", ""), ("key", "key", ""), ("cost", "integer", "")],
    },
    Description {
        name: "ration.release",
        arity: 4,
        key: 2,
        summary: "Ends a slot of a concurrent limit.",
        arguments: &[("policy", "string", ""), ("key", "key", ""), ("id", "string", "")],
    },
    Description {
        name: "ration.reset",
        arity: 3,
        key: 2,
        summary: "Forgets what a key has spent, on all nodes.",
        arguments: &[("policy", "string", ""), ("key", "key", "")],
    },
    Description {
        name: "ration.keys",
        arity: -1,
        key: 0,
        summary: "Lists keys that this node knows, as JSON.",
        arguments: &[("cursor?", "string", "CURSOR"), ("count?", "integer", "COUNT")],
    },
    with(
        "ration.top",
        -1,
        "Reports what this node, or each of the fleet, does now and which keys are hot, as JSON.",
        &[("count?", "integer", "COUNT"), ("fleet?", "pure-token", "FLEET")],
    ),
    plain("ration.denials", 1, "Lists what this node has denied of late, as JSON."),
    plain("ration.policies", 1, "Lists the policies in force, as JSON."),
    plain("ration.peers", 1, "Lists the nodes of the fleet, as JSON."),
    plain("ration.stats", 1, "Reports what this node has counted, as JSON."),
    with(
        "ration.reload",
        -1,
        "Reads the configuration again, whole or not at all; or tells what that would change.",
        &[("dryrun?", "pure-token", "DRYRUN")],
    ),
    with(
        "auth",
        -2,
        "Answers OK: the socket's mode decides who may connect.",
        &[("username?", "string", ""), ("password", "string", "")],
    ),
    with("client", -2, "Names this connection: CLIENT HELP says how.", SUBCOMMAND),
    with("command", -1, "Describes the commands: COMMAND HELP says how.", SUBCOMMAND),
    with("config", -2, "Answers CONFIG GET with what client programs ask for.", &[("pattern+", "pattern", "GET")]),
    plain("discard", 1, "Drops the commands queued since MULTI."),
    with(
        "eval",
        -3,
        "Runs the one script that calls cl.throttle.",
        &[("script", "string", ""), ("numkeys", "integer", ""), ("key", "key", ""), ("argument+", "string", "")],
    ),
    with(
        "evalsha",
        -3,
        "Runs it by the hash of its text, once that has come.",
        &[("sha1", "string", ""), ("numkeys", "integer", ""), ("key", "key", ""), ("argument+", "string", "")],
    ),
    with("script", -2, "Tells the hash of that script's text: SCRIPT HELP says how.", SUBCOMMAND),
    with("echo", 2, "Answers its argument.", &[("message", "string", "")]),
    plain("exec", 1, "Runs the commands queued since MULTI, in order."),
    with(
        "hello",
        -1,
        "Chooses RESP2 or RESP3.",
        &[("protover?", "integer", ""), ("username password?", "block", "AUTH"), ("clientname?", "string", "SETNAME")],
    ),
    with("info", -1, "Describes this daemon.", &[("section?+", "string", "")]),
    plain("multi", 1, "Queues commands until EXEC."),
    with("ping", -1, "Answers PONG, or its argument.", &[("message?", "string", "")]),
    plain("quit", -1, "Closes the connection."),
    plain("readonly", 1, "Answers OK."),
    plain("readwrite", 1, "Answers OK."),
    plain("reset", 1, "Puts the connection into the state it opened in."),
    with("select", 2, "Answers OK for database 0, the only one.", &[("index", "integer", "")]),
];

fn find(name: &[u8]) -> Option<&'static Description> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

impl Description {
    /// The group in which `help @GROUP` of `redis-cli` lists it.
    fn group(&self) -> &'static str {
        match self.name {
            "discard" | "exec" | "multi" => "transactions",
            "eval" | "evalsha" | "script" => "scripting",
            "command" | "config" | "info" => "server",
            "auth" | "client" | "echo" | "hello" | "ping" | "quit" | "readonly" | "readwrite" | "reset" | "select" => {
                "connection"
            }
            _ => "rationd",
        }
    }
}

/// The syntax of a command with arguments: `RATION.CHECK policy key [COST cost] [PEEK]`. `None` for commands with
/// subcommands, whose error messages name them.
#[must_use]
pub fn usage(name: &[u8]) -> Option<String> {
    let command = find(name).filter(|command| !command.arguments.is_empty())?;
    let mut usage = command.name.to_uppercase();
    if HELP.iter().any(|(name, _)| *name == usage) {
        return Some(usage + " HELP says how");
    }
    for &argument in command.arguments {
        let Shown { name, is_optional, is_multiple } = Shown::of(argument.0);
        let mut text = match argument {
            (_, "pure-token", token) => token.to_owned(),
            (_, _, "") => name.to_owned(),
            (_, _, token) => format!("{token} {name}"),
        };
        if is_multiple {
            text += &format!(" [{name} ...]");
        }
        usage += &if is_optional { format!(" [{text}]") } else { format!(" {text}") };
    }
    Some(usage)
}

/// An argument's name without the marks.
struct Shown {
    name: &'static str,
    is_optional: bool,
    is_multiple: bool,
}

impl Shown {
    fn of(name: &'static str) -> Self {
        let is_multiple = name.ends_with('+');
        let name = name.trim_end_matches('+');
        Self { name: name.trim_end_matches('?'), is_optional: name.ends_with('?'), is_multiple }
    }
}

/// Writes `COMMAND LIST`: all names.
pub fn write_list(writer: &mut Writer<'_>) {
    writer.array(COMMANDS.len());
    COMMANDS.iter().for_each(|command| writer.bulk(command.name.as_bytes()));
}

/// Writes `COMMAND INFO` for `names`, or for all commands when there are none.
pub fn write_info<'n>(writer: &mut Writer<'_>, names: impl ExactSizeIterator<Item = &'n [u8]>) {
    if names.len() == 0 {
        writer.array(COMMANDS.len());
        COMMANDS.iter().for_each(|command| write_one(writer, command));
        return;
    }
    writer.array(names.len());
    for name in names {
        match find(name) {
            Some(command) => write_one(writer, command),
            None => writer.null(),
        }
    }
}

fn write_one(writer: &mut Writer<'_>, command: &Description) {
    writer.array(6);
    writer.bulk(command.name.as_bytes());
    writer.integer(command.arity);
    writer.array(1);
    writer.simple("fast");
    writer.integer(command.key);
    writer.integer(command.key);
    writer.integer(i64::from(command.key > 0));
}

/// Writes `COMMAND DOCS` for `names`, or for all commands when there are none. Unknown names are left out.
pub fn write_docs<'n>(writer: &mut Writer<'_>, names: impl ExactSizeIterator<Item = &'n [u8]>) {
    let found: Vec<&Description> =
        if names.len() == 0 { COMMANDS.iter().collect() } else { names.filter_map(find).collect() };
    writer.map(found.len());
    for command in found {
        writer.bulk(command.name.as_bytes());
        writer.map(if command.arguments.is_empty() { 3 } else { 4 });
        for (field, text) in [("summary", command.summary), ("since", "0.1.0"), ("group", command.group())] {
            writer.bulk(field.as_bytes());
            writer.bulk(text.as_bytes());
        }
        if !command.arguments.is_empty() {
            writer.bulk(b"arguments");
            writer.array(command.arguments.len());
            command.arguments.iter().for_each(|argument| write_argument(writer, *argument));
        }
    }
}

fn write_argument(writer: &mut Writer<'_>, (name, kind, token): Argument) {
    let Shown { name, is_optional, is_multiple } = Shown::of(name);
    let flags = [("optional", is_optional), ("multiple", is_multiple)];
    let flags: Vec<&str> = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| *flag).collect();
    let is_block = kind == "block";
    let fields = [!token.is_empty(), !flags.is_empty(), is_block];
    writer.map(2 + fields.iter().filter(|is_there| **is_there).count());
    for (field, text) in [("name", name), ("type", kind)] {
        writer.bulk(field.as_bytes());
        writer.bulk(text.as_bytes());
    }
    if !token.is_empty() {
        writer.bulk(b"token");
        writer.bulk(token.as_bytes());
    }
    if !flags.is_empty() {
        writer.bulk(b"flags");
        writer.array(flags.len());
        flags.iter().for_each(|flag| writer.simple(flag));
    }
    if is_block {
        let parts = name.split(' ');
        writer.bulk(b"arguments");
        writer.array(parts.clone().count());
        parts.for_each(|part| write_argument(writer, (part, "string", "")));
    }
}
