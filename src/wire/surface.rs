//! The table of commands, as `COMMAND`, `COMMAND DOCS` and `redis-cli`'s hints show it.
//!
//! A description only: what a command does is decided elsewhere. Called by the daemon's sessions.

use super::reply::Writer;

/// One command as clients see it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Arguments with its name; negative: at least so many.
    pub arity: i64,
    /// Which argument is the key; 0: none.
    pub key: i64,
    /// One line.
    pub summary: &'static str,
    /// Arguments for hints: name, type, token ("" for none); optional ones end with `?`.
    pub arguments: &'static [(&'static str, &'static str, &'static str)],
}

const fn plain(name: &'static str, arity: i64, summary: &'static str) -> Description {
    Description { name, arity, key: 0, summary, arguments: &[] }
}

/// A token bucket by numbers.
const BUCKET: &[(&str, &str, &str)] = &[
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
        summary: "The same as CL.THROTTLE; answers throttlecrab's five integers.",
        arguments: BUCKET,
    },
    Description {
        name: "ration.mcheck",
        arity: -5,
        key: 3,
        summary: "Checks and charges several keys, all of them or none; answers their decisions.",
        arguments: &[("count", "integer", ""), ("policy", "string", ""), ("key", "key", ""), ("cost", "integer", "")],
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
            ("style?", "string", "STYLE"),
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
        arguments: &[("count?", "integer", "COUNT")],
    },
    plain("ration.policies", 1, "Lists the policies in force, as JSON."),
    plain("ration.stats", 1, "Reports what this node has counted, as JSON."),
    plain("ration.reload", 1, "Reads the configuration again, whole or not at all."),
    plain("auth", -2, "Answers OK: the socket's mode decides who may connect."),
    plain("client", -2, "Names this connection."),
    plain("command", -1, "Describes the commands."),
    plain("config", -3, "Answers CONFIG GET with what client programs ask for."),
    plain("discard", 1, "Drops the commands queued since MULTI."),
    plain("eval", -3, "Runs the one script that calls cl.throttle."),
    plain("echo", 2, "Answers its argument."),
    plain("exec", 1, "Runs the commands queued since MULTI, in order."),
    plain("hello", -1, "Chooses RESP2 or RESP3."),
    plain("info", -1, "Describes this daemon."),
    plain("multi", 1, "Queues commands until EXEC."),
    plain("ping", -1, "Answers PONG, or its argument."),
    plain("quit", -1, "Closes the connection."),
    plain("readonly", 1, "Answers OK."),
    plain("readwrite", 1, "Answers OK."),
    plain("reset", 1, "Puts the connection into the state it opened in."),
    plain("select", 2, "Answers OK for database 0."),
];

fn find(name: &[u8]) -> Option<&'static Description> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Writes `COMMAND INFO`: of `names`, or of all when there are none.
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

/// Writes `COMMAND DOCS`: of `names`, or of all when there are none. Unknown names are left out.
pub fn write_docs<'n>(writer: &mut Writer<'_>, names: impl ExactSizeIterator<Item = &'n [u8]>) {
    let found: Vec<&Description> =
        if names.len() == 0 { COMMANDS.iter().collect() } else { names.filter_map(find).collect() };
    writer.map(found.len());
    for command in found {
        writer.bulk(command.name.as_bytes());
        writer.map(if command.arguments.is_empty() { 3 } else { 4 });
        for (field, text) in [("summary", command.summary), ("since", "0.1.0"), ("group", "rationd")] {
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

fn write_argument(writer: &mut Writer<'_>, (name, kind, token): (&str, &str, &str)) {
    let optional = name.ends_with('?');
    let name = name.trim_end_matches('?');
    writer.map(2 + usize::from(!token.is_empty()) + usize::from(optional));
    for (field, text) in [("name", name), ("type", kind)] {
        writer.bulk(field.as_bytes());
        writer.bulk(text.as_bytes());
    }
    if !token.is_empty() {
        writer.bulk(b"token");
        writer.bulk(token.as_bytes());
    }
    if optional {
        writer.bulk(b"flags");
        writer.array(1);
        writer.simple("optional");
    }
}
