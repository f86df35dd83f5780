//! The commands of one connection: from typed commands to requests for the node, and from answers to replies.
//!
//! It has the state that the protocol gives a connection: its version, its name, an open transaction. It never waits:
//! what cannot be answered at once becomes a pending reply in the reply queue. Knows shards and policies, not
//! sockets. Called by connections with one command at a time; they make sure that there is room for the replies.

use std::sync::Arc;

use super::ad_hoc_rules::AdHocRules;
use super::ask::Ask;
use super::caller::{Caller, Forbidden};
use super::connection_permits::ConnectionPermits;
use super::mailbox::{Answer, Mailbox, Waiter};
use super::node::Outgoing;
use super::reply_queue::{Mark, ReplyFormat, ReplyQueue};
use super::server_state::ServerState;
use super::thread_stats::ThreadStats;
use super::transaction::Transaction;
use super::{command_line, handshake, requests, tcp};
use crate::core::policy::PolicySet;
use crate::core::time::Instant;
use crate::wire::command::{Admin, Client, Command, Commands, Login};
use crate::wire::command_error::CommandError;
use crate::wire::reply::{Protocol, Writer};
use crate::wire::resp::Args;
use crate::wire::{command_table, help};

mod keys;
mod scripts;

/// The reply in place of one for which there is no memory.
const NO_ROOM: &str = "ERR too much waits to be sent to this daemon's clients for so long an answer: try again later";

/// The errors for a client that has to authenticate, in Redis' words, because client libraries know them.
const UNKNOWN: &str = "NOAUTH Authentication required.";
const UNKNOWN_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
    the same time";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// The state that the protocol gives one connection.
#[derive(Debug)]
pub struct Session {
    id: u64,
    caller: Caller,
    protocol: Protocol,
    name: Vec<u8>,
    transaction: Option<Transaction>,
    /// The transaction that `EXEC` runs, command by command as there is room for replies.
    running: Option<Transaction>,
    /// The pending reply of the last command of the command line. Its answer may be long, so the next command waits
    /// for it.
    asked: Option<u64>,
    replies: ReplyQueue,
    mailbox: Arc<Mailbox>,
    permits: Arc<ConnectionPermits>,
    closing: bool,
}

/// What commands of one batch use: one reading of the clock, and the buffers of the thread.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The time of the whole batch.
    pub now: Instant,
    /// When the present command arrived.
    pub came: Instant,
    /// The daemon's shared state.
    pub state: &'a Arc<ServerState>,
    /// The policies in force.
    pub policies: &'a PolicySet,
    /// This thread's cache of ad hoc rules.
    pub rules: &'a mut AdHocRules,
    /// Effects of the shards.
    pub outgoing: &'a mut Outgoing,
    /// This thread's counts.
    pub stats: &'a mut ThreadStats,
    /// Output for replies that need not wait for an earlier one.
    pub direct: &'a mut Vec<u8>,
}

impl Batch<'_> {
    /// Until when the present command may wait for the store.
    pub(super) fn deadline(&self) -> Instant {
        self.came + self.state.node.timeout
    }
}

impl Session {
    /// The session of a new connection.
    #[must_use]
    pub fn new(id: u64, caller: Caller, mailbox: Arc<Mailbox>) -> Self {
        Self {
            id,
            caller,
            protocol: Protocol::Two,
            name: Vec::new(),
            transaction: None,
            running: None,
            asked: None,
            replies: ReplyQueue::default(),
            mailbox,
            permits: Arc::default(),
            closing: false,
        }
    }

    /// Whether the connection is to be closed once all replies are sent.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether the client has yet to say who it is.
    #[must_use]
    pub fn is_stranger(&self, state: &ServerState) -> bool {
        self.caller.may_ask(state).is_err()
    }

    /// The connection has closed: permits that were taken over it are released.
    pub fn end(&self, state: &ServerState) {
        self.permits.end(state);
    }

    /// Replies that are not sent yet.
    pub fn replies(&mut self) -> &mut ReplyQueue {
        &mut self.replies
    }

    /// Bytes of the transactions.
    #[must_use]
    pub fn queued(&self) -> usize {
        let bytes = |queue: &Option<Transaction>| queue.as_ref().map_or(0, Transaction::bytes);
        bytes(&self.transaction) + bytes(&self.running)
    }

    /// Whether a reply is pending that the next command must wait for.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asked.is_some_and(|seq| self.replies.awaits(seq))
    }

    /// Whether a transaction has commands left to run. [`Self::go_on`] must run them before any other.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Runs the next command of the transaction that `EXEC` has begun.
    pub fn go_on(&mut self, batch: &mut Batch<'_>) {
        let Some(mut running) = self.running.take() else { return };
        if let Some(args) = running.next_command() {
            match Command::parse(args) {
                Ok(command) => self.execute(batch, command, args),
                Err(problem) => self.refuse(batch, args, &problem),
            }
        }
        self.running = Some(running).filter(|running| !running.is_empty());
    }

    /// Gives the open transaction up for lack of memory. Returns whether it had queued commands.
    pub fn give_up(&mut self) -> bool {
        let open = self.transaction.as_mut().filter(|transaction| !transaction.is_empty());
        open.map(Transaction::overflow).is_some()
    }

    /// Replaces the replies since `mark` by an error, because there is no memory for them. Only commands that charge
    /// nothing have replies of such a size.
    pub fn withhold(&mut self, batch: &mut Batch<'_>, mark: Mark) {
        self.replies.cut(mark, batch.direct);
        self.error(batch, NO_ROOM);
    }

    /// Stores an answer, or an error in its place when there is no memory for it.
    pub fn fill(&mut self, seq: u64, answer: Answer, has_room: bool) {
        let answer = if has_room { answer } else { Answer::Reply(format!("-{NO_ROOM}\r\n").into_bytes()) };
        self.replies.fill(seq, answer);
    }

    /// Writes the error of a broken protocol, after which the connection closes.
    pub fn break_off(&mut self, batch: &mut Batch<'_>, problem: &dyn std::fmt::Display) {
        batch.stats.errors += 1;
        self.closing = true;
        self.writer(batch).error(&format!("ERR {problem}"));
    }

    /// Whether a command that is too late to ask the store is answered at once.
    #[must_use]
    pub fn answers_late(&self, args: Args<'_>) -> bool {
        let is_check = || match Command::parse(args) {
            Ok(Command::Check { .. }) => true,
            Ok(Command::Throttle { quantity, .. }) => quantity >= 0,
            _ => false,
        };
        args.is_empty() || self.transaction.is_some() || is_check()
    }

    /// Runs one command. An empty one has no reply.
    pub fn run(&mut self, batch: &mut Batch<'_>, args: Args<'_>) {
        if args.is_empty() {
            return;
        }
        batch.stats.commands += 1;
        let parsed = Command::parse(args);
        if self.is_stranger(batch.state) && !parsed.as_ref().is_ok_and(is_for_strangers) {
            return self.error(batch, UNKNOWN);
        }
        match parsed {
            Ok(command) if self.transaction.is_some() => self.in_transaction(batch, command, args),
            Ok(command) => self.execute(batch, command, args),
            Err(problem) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.spoil();
                }
                self.refuse(batch, args, &problem);
            }
        }
    }

    fn in_transaction(&mut self, batch: &mut Batch<'_>, command: Command<'_>, args: Args<'_>) {
        match command {
            Command::Exec => {
                let Some(transaction) = self.transaction.take() else { return };
                if transaction.is_spoilt() {
                    self.writer(batch).error("EXECABORT Transaction discarded because of previous errors.");
                    return;
                }
                self.writer(batch).array(transaction.len());
                self.running = Some(transaction).filter(|transaction| !transaction.is_empty());
            }
            Command::Discard => {
                self.transaction = None;
                self.writer(batch).simple("OK");
            }
            Command::Multi => self.error(batch, "ERR MULTI calls can not be nested"),
            Command::Quit | Command::ResetConnection => self.execute(batch, command, args),
            _ => {
                let Some(transaction) = &mut self.transaction else { return };
                if transaction.has_overflown() {
                    return self.error(batch, "ERR there is no memory for so long a transaction: EXEC will discard it");
                }
                if !transaction.is_spoilt() {
                    transaction.queue(args);
                }
                self.writer(batch).simple("QUEUED");
            }
        }
    }

    fn execute(&mut self, batch: &mut Batch<'_>, command: Command<'_>, args: Args<'_>) {
        match command {
            Command::Reset { .. }
            | Command::Admin(Admin::Reload { .. } | Admin::Keys { .. } | Admin::Top { .. } | Admin::Denials)
                if !self.caller.may_administer(batch.state) =>
            {
                self.forbid(batch, args);
            }
            Command::Throttle { key, rate, quantity } => self.throttle(batch, key, rate, quantity),
            Command::Check { policy, key, cost, peek } => self.check(batch, policy, key, cost, peek),
            Command::Refund { policy, key, cost } => self.refund_or_reset(batch, Ask::Refund, policy, key, cost),
            Command::Release { policy, key, id } => self.release(batch, policy, key, id),
            Command::Reset { policy, key } => self.refund_or_reset(batch, Ask::Reset, policy, key, 0),
            Command::MCheck => self.mcheck(batch, args),
            Command::Headers { policy, key, cost, style } => {
                self.reply_later(batch, (policy, key, cost), |state, check| requests::headers(state, check, style));
            }
            Command::Hold { policy, key, cost, ttl_ms } => {
                self.reply_later(batch, (policy, key, cost), |state, check| requests::hold(state, check, ttl_ms));
            }
            Command::Lease { policy, key, want } => self.reply_later(batch, (policy, key, want), requests::lease),
            Command::Explain { policy, key } => self.explain(batch, policy, key),
            Command::Settle { id, cost } => {
                self.reply_or_spawn(batch, requests::settle(batch.state.clone(), id.into(), cost))
            }
            Command::Admin(admin) => self.admin(batch, admin),
            Command::Multi => {
                self.transaction = Some(Transaction::default());
                self.writer(batch).simple("OK");
            }
            Command::Exec => self.error(batch, "ERR EXEC without MULTI"),
            Command::Discard => self.error(batch, "ERR DISCARD without MULTI"),
            Command::Quit => {
                self.closing = true;
                self.writer(batch).simple("OK");
            }
            Command::ResetConnection => {
                self.protocol = Protocol::Two;
                self.name.clear();
                self.transaction = None;
                if let Caller::Remote(user) = &mut self.caller {
                    *user = None;
                }
                self.writer(batch).simple("RESET");
            }
            Command::Hello { protocol, login, name } => self.hello(batch, protocol, login, name),
            Command::Auth(login) => {
                if self.log_in(batch, login) {
                    self.writer(batch).simple("OK");
                }
            }
            Command::Ping(None) => self.writer(batch).simple("PONG"),
            Command::Ping(Some(text)) | Command::Echo(text) => self.writer(batch).bulk(text),
            Command::Script(script) => self.script(batch, script, args),
            Command::Client(client) => self.client(batch, client),
            Command::NoOp => self.writer(batch).simple("OK"),
            Command::Info => {
                let text = handshake::info(batch.state, batch.now);
                self.writer(batch).bulk(text.as_bytes());
            }
            Command::Commands(Commands::Count) => self.writer(batch).count(command_table::COMMANDS.len() as u64),
            Command::Commands(Commands::Info) => {
                command_table::write_info(&mut self.writer(batch), args.iter().skip(2))
            }
            Command::Commands(Commands::Docs) => {
                command_table::write_docs(&mut self.writer(batch), args.iter().skip(2))
            }
            Command::Commands(Commands::List) => command_table::write_list(&mut self.writer(batch)),
            Command::Help(command) => help::write_help(&mut self.writer(batch), command),
            Command::ConfigGet => handshake::write_config(&mut self.writer(batch), args.iter().skip(2)),
        }
    }

    fn admin(&mut self, batch: &mut Batch<'_>, admin: Admin) {
        let waiter = Waiter { mailbox: self.mailbox.clone(), seq: self.replies.next_seq() };
        self.asked = Some(waiter.seq);
        self.replies.park(batch.now, ReplyFormat::Whole);
        command_line::answer(batch.state.clone(), admin, waiter);
    }

    /// Refuses administrative commands to clients without the rights.
    fn forbid(&mut self, batch: &mut Batch<'_>, args: Args<'_>) {
        let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_uppercase();
        let why = match &self.caller {
            Caller::Process(uid) => {
                format!("uid {uid} is not in listen.admin_uids (unset: root and the daemon's own user)")
            }
            Caller::Remote(None) => "over TCP these are users with admin = true in listen.tcp_users".into(),
            Caller::Remote(Some(user)) => format!("user '{user}' has no admin = true in listen.tcp_users"),
        };
        self.error(batch, &format!("NOPERM {name} is for administrators: {why}"));
    }

    /// Writes why a command is forbidden that needs `what` of a user.
    fn not_granted(&mut self, batch: &mut Batch<'_>, why: Forbidden, what: &str) {
        match (why, &self.caller) {
            (Forbidden::This, Caller::Remote(Some(user))) => {
                let text = format!("NOPERM user '{user}' may not use {what}: see `policies` in listen.tcp_users");
                self.error(batch, &text);
            }
            _ => self.error(batch, UNKNOWN),
        }
    }

    /// Authenticates a client as the user whose password it sends. Where nobody needs one, as on the socket, whose mode
    /// and uids decide who may connect, any password is right. Returns false after an error was written.
    fn log_in(&mut self, batch: &mut Batch<'_>, login: Login<'_>) -> bool {
        let Caller::Remote(user) = &mut self.caller else { return true };
        let access = batch.state.remote.load();
        let Some(users) = &access.users else { return true };
        let name = login.user.map_or(Some(tcp::users::DEFAULT), |name| std::str::from_utf8(name).ok());
        match name.filter(|name| users.is_right(name, login.password)) {
            Some(name) => {
                *user = Some(name.into());
                true
            }
            None => {
                let seen = login.user.unwrap_or(tcp::users::DEFAULT.as_bytes());
                let seen = seen[..seen.len().min(64)].escape_ascii().to_string();
                tracing::warn!(user = seen, "a client of the TCP address has a wrong user name or password");
                self.error(batch, WRONG_PASSWORD);
                false
            }
        }
    }

    fn hello(&mut self, batch: &mut Batch<'_>, protocol: Option<u8>, login: Option<Login<'_>>, name: Option<&[u8]>) {
        if let Some(login) = login
            && !self.log_in(batch, login)
        {
            return;
        }
        if self.is_stranger(batch.state) {
            return self.error(batch, UNKNOWN_HELLO);
        }
        match protocol {
            Some(3) => self.protocol = Protocol::Three,
            Some(_) => self.protocol = Protocol::Two,
            None => {}
        }
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        let (id, protocol) = (self.id, self.protocol);
        handshake::write_hello(&mut self.writer(batch), id, protocol);
    }

    fn client(&mut self, batch: &mut Batch<'_>, client: Client<'_>) {
        match client {
            Client::NoOp => self.writer(batch).simple("OK"),
            Client::SetName(name) => {
                self.name = name.to_vec();
                self.writer(batch).simple("OK");
            }
            Client::GetName if self.name.is_empty() => self.writer(batch).null(),
            Client::GetName => {
                let name = self.name.clone();
                self.writer(batch).bulk(&name);
            }
            Client::Id => {
                let id = self.id;
                self.writer(batch).count(id);
            }
            Client::Info => {
                let name = String::from_utf8_lossy(&self.name);
                let protocol = if self.protocol == Protocol::Three { 3 } else { 2 };
                let who = match &self.caller {
                    Caller::Process(uid) => format!("uid={uid}"),
                    Caller::Remote(user) => format!("user={}", user.as_deref().unwrap_or(tcp::users::DEFAULT)),
                };
                let line = format!("id={} name={name} {who} db=0 resp={protocol}\n", self.id);
                self.writer(batch).bulk(line.as_bytes());
            }
        }
    }

    fn refuse(&mut self, batch: &mut Batch<'_>, args: Args<'_>, problem: &CommandError<'_>) {
        self.error(batch, &handshake::error_text(args.get(0).unwrap_or_default(), problem));
    }

    fn error(&mut self, batch: &mut Batch<'_>, text: &str) {
        batch.stats.errors += 1;
        self.writer(batch).error(text);
    }

    fn writer<'w>(&'w mut self, batch: &'w mut Batch<'_>) -> Writer<'w> {
        Writer::new(self.replies.sink(batch.direct), self.protocol)
    }
}

/// Whether a client may run this before it has authenticated.
fn is_for_strangers(command: &Command<'_>) -> bool {
    matches!(command, Command::Auth(_) | Command::Hello { .. } | Command::Quit | Command::ResetConnection)
}
