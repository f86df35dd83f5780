//! The replies to `CLIENT HELP` and the like: subcommands line by line, in Redis' form.

use super::reply::Writer;

/// The subcommands of each command, as its help lists them.
pub(super) const HELP: &[(&str, &[&str])] = &[
    (
        "CLIENT",
        &[
            "CLIENT <subcommand> [<arg> ...]. Subcommands are:",
            "GETNAME",
            "    Answers the name of this connection.",
            "ID",
            "    Answers the number of this connection.",
            "INFO, LIST",
            "    Describe this connection.",
            "SETNAME <name>",
            "    Names this connection.",
            "CACHING, NO-EVICT, NO-TOUCH, REPLY ON, SETINFO, TRACKING, UNPAUSE",
            "    Answer OK and change nothing.",
        ],
    ),
    (
        "COMMAND",
        &[
            "COMMAND <subcommand> [<arg> ...]. Subcommands are:",
            "(no subcommand)",
            "    Describes all commands for clients.",
            "COUNT",
            "    Answers how many there are.",
            "DOCS [<command-name> ...]",
            "    Describes them and their arguments for people.",
            "INFO [<command-name> ...]",
            "    Describes them for clients.",
            "LIST",
            "    Answers their names.",
        ],
    ),
    (
        "CONFIG",
        &[
            "CONFIG <subcommand> [<arg> ...]. Subcommands are:",
            "GET <name> ...",
            "    Answers save and appendonly, for programs that ask. rationd's own: rationd config show.",
        ],
    ),
    (
        "SCRIPT",
        &[
            "SCRIPT <subcommand> [<arg> ...]. Subcommands are:",
            "EXISTS <sha1> ...",
            "    Answers which of them EVALSHA knows.",
            "FLUSH",
            "    Forgets all.",
            "LOAD <script>",
            "    Answers the hash of the one script that is understood, for EVALSHA.",
        ],
    ),
];

/// Writes the answer to `CLIENT HELP`, `COMMAND HELP` or `CONFIG HELP`.
pub fn write_help(writer: &mut Writer<'_>, command: &str) {
    let found = HELP.iter().find(|(name, _)| *name == command);
    let lines = found.map_or(&[][..], |(_, lines)| lines);
    writer.array(lines.len());
    lines.iter().for_each(|line| writer.simple(line));
}
