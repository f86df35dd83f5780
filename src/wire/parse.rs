//! Parses the arguments of a request into a command, or into the exact text of an error.
//!
//! It knows names, arities and number formats. `ration.rs` parses `RATION.*`, and `throttle.rs` parses `CL.THROTTLE`
//! and scripts; commands that clients send once per connection are parsed here. It allocates only to word an error.
//! Called by the daemon's sessions, for single commands and for those of a transaction.

use super::arguments::{arity, integer};
use super::command::{Client, Command, Commands, Login};
use super::command_error::CommandError;
use super::ration::{check, ration};
use super::resp::Args;
use super::throttle::{eval, script, throttle, throttlecrab};

impl<'a> Command<'a> {
    /// Parses `args`, which must not be empty. The case of names and options does not matter.
    ///
    /// # Errors
    /// What is wrong, ready to be shown to the client.
    pub fn parse(args: Args<'a>) -> Result<Self, CommandError<'a>> {
        let name = args.get(0).unwrap_or_default();
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        // The two commands on the hot path come first, as they are mostly written: to compare twelve bytes without their case costs
        // five times as much. The others are sent about once per connection.
        match name.len() {
            11 if name == b"CL.THROTTLE" => throttle(args, 1),
            12 if name == b"RATION.CHECK" => check(args),
            11 if is("CL.THROTTLE") => throttle(args, 1),
            12 if is("RATION.CHECK") => check(args),
            _ if name.len() > 7 && name[..7].eq_ignore_ascii_case(b"RATION.") => ration(args),
            _ => handshake(args),
        }
    }
}

fn handshake<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let name = args.get(0).unwrap_or_default();
    let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
    let alone = |command| if args.len() == 1 { Ok(command) } else { Err(arity(args)) };
    let first = args.get(1);
    if is("PING") {
        return if args.len() <= 2 { Ok(Command::Ping(first)) } else { Err(arity(args)) };
    }
    if is("ECHO") {
        return first.filter(|_| args.len() == 2).map(Command::Echo).ok_or(arity(args));
    }
    if is("HELLO") {
        return hello(args);
    }
    if is("CLIENT") {
        return client(args);
    }
    if is("COMMAND") {
        return commands(args);
    }
    if is("CONFIG") {
        return match first {
            None => Err(arity(args)),
            Some(help) if help.eq_ignore_ascii_case(b"HELP") => Ok(Command::Help("CONFIG")),
            Some(get) if !get.eq_ignore_ascii_case(b"GET") => Err(CommandError::Subcommand("CONFIG", get)),
            Some(_) if args.len() < 3 => Err(arity(args)),
            Some(_) => Ok(Command::ConfigGet),
        };
    }
    if is("SELECT") {
        let database = first.filter(|_| args.len() == 2).ok_or(arity(args))?;
        return if integer(database)? == 0 { Ok(Command::NoOp) } else { Err(CommandError::Database) };
    }
    if is("AUTH") {
        return match (args.get(1), args.get(2), args.len()) {
            (Some(password), None, 2) => Ok(Command::Auth(Login { user: None, password })),
            (user, Some(password), 3) => Ok(Command::Auth(Login { user, password })),
            _ => Err(arity(args)),
        };
    }
    if is("THROTTLE") {
        return throttlecrab(args);
    }
    if is("EVAL") || is("EVALSHA") {
        return eval(args, is("EVALSHA"));
    }
    if is("SCRIPT") {
        return script(args);
    }
    if is("INFO") {
        return Ok(Command::Info);
    }
    if is("QUIT") {
        return Ok(Command::Quit);
    }
    let plain = [
        ("MULTI", Command::Multi),
        ("EXEC", Command::Exec),
        ("DISCARD", Command::Discard),
        ("RESET", Command::ResetConnection),
        ("READONLY", Command::NoOp),
        ("READWRITE", Command::NoOp),
    ];
    match plain.into_iter().find(|(wanted, _)| is(wanted)) {
        Some((_, command)) => alone(command),
        None => Err(CommandError::Unknown(args)),
    }
}

fn hello<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let protocol = match args.get(1) {
        None => None,
        Some(number) => match integer(number) {
            Err(_) => return Err(CommandError::ProtocolNumber),
            Ok(2) => Some(2),
            Ok(3) => Some(3),
            Ok(_) => return Err(CommandError::Protocol),
        },
    };
    let (mut name, mut login) = (None, None);
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"AUTH") && args.len() > at + 2 {
            login = args.get(at + 2).map(|password| Login { user: args.get(at + 1), password });
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && args.len() > at + 1 {
            name = Some(client_name(args.get(at + 1).unwrap_or_default())?);
            at += 2;
        } else {
            return Err(CommandError::HelloOption(option));
        }
    }
    Ok(Command::Hello { protocol, login, name })
}

fn client<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    const SILENT: [&str; 7] = ["SETINFO", "NO-EVICT", "NO-TOUCH", "TRACKING", "CACHING", "REPLY", "UNPAUSE"];
    let sub = args.get(1).ok_or(arity(args))?;
    let is = |wanted: &str| sub.eq_ignore_ascii_case(wanted.as_bytes());
    let command = if is("SETNAME") {
        if args.len() != 3 {
            return Err(arity(args));
        }
        Client::SetName(client_name(args.get(2).unwrap_or_default())?)
    } else if is("GETNAME") {
        Client::GetName
    } else if is("ID") {
        Client::Id
    } else if is("INFO") || is("LIST") {
        Client::Info
    } else if is("HELP") {
        return Ok(Command::Help("CLIENT"));
    } else if is("REPLY") && !args.get(2).is_some_and(|mode| mode.eq_ignore_ascii_case(b"ON")) {
        return Err(CommandError::Silence);
    } else if SILENT.into_iter().any(is) {
        Client::NoOp
    } else {
        return Err(CommandError::Subcommand("CLIENT", sub));
    };
    Ok(Command::Client(command))
}

fn commands<'a>(args: Args<'a>) -> Result<Command<'a>, CommandError<'a>> {
    let Some(sub) = args.get(1) else { return Ok(Command::Commands(Commands::Info)) };
    if sub.eq_ignore_ascii_case(b"HELP") {
        return Ok(Command::Help("COMMAND"));
    }
    let all =
        [("INFO", Commands::Info), ("COUNT", Commands::Count), ("DOCS", Commands::Docs), ("LIST", Commands::List)];
    let found = all.into_iter().find(|(wanted, _)| sub.eq_ignore_ascii_case(wanted.as_bytes()));
    found.map(|(_, command)| Command::Commands(command)).ok_or(CommandError::Subcommand("COMMAND", sub))
}

fn client_name(name: &[u8]) -> Result<&[u8], CommandError<'_>> {
    if name.iter().all(u8::is_ascii_graphic) && name.len() <= 256 { Ok(name) } else { Err(CommandError::ClientName) }
}
