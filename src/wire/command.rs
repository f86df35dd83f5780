//! Commands as typed values: what a client asks, once its arguments are understood.
//!
//! Does not know how arguments are written: `parse.rs` does, and adds [`Command::parse`]. Does not know policies,
//! connections or keys' states either. Borrows from the request. Carried out by the daemon's sessions.

use super::headers::Style;
use super::rate::Rate;

/// Longest key.
pub const MAX_KEY: usize = 64 << 10;

/// Most keys of one `RATION.MCHECK`.
pub const MAX_KEYS: usize = 64;

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `CL.THROTTLE key max_burst count period [quantity]`, or `THROTTLE`.
    Throttle {
        /// The key.
        key: &'a [u8],
        /// The limit in numbers, and in whose words.
        rate: Rate,
        /// Tokens asked for; 0 peeks, below 0 gives back.
        quantity: i64,
    },
    /// `RATION.CHECK policy key [COST n] [PEEK]`.
    Check {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// Tokens asked for.
        cost: u64,
        /// Charge nothing.
        peek: bool,
    },
    /// `RATION.MCHECK n policy key cost …`: see [`parts`](super::ration::parts).
    Many,
    /// `RATION.HEADERS policy key [COST n] [STYLE draft|x|github]`.
    Headers {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// Tokens asked for.
        cost: u64,
        /// Which header fields.
        style: Style,
    },
    /// `RATION.HOLD policy key cost [TTL ms]`.
    Hold {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// The estimate.
        cost: u64,
        /// How long it can be settled, in milliseconds.
        ttl_ms: Option<u64>,
    },
    /// `RATION.SETTLE id actual_cost`.
    Settle {
        /// What `HOLD` gave.
        id: &'a [u8],
        /// What it really was.
        cost: u64,
    },
    /// `RATION.LEASE policy key want`.
    Lease {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// Tokens wanted.
        want: u64,
    },
    /// `RATION.EXPLAIN policy key`.
    Explain {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
    },
    /// `RATION.REFUND policy key cost`, or `RATION.RETURN`.
    Refund {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// Tokens given back.
        cost: u64,
    },
    /// `RATION.RELEASE policy key id`.
    Release {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
        /// What the check told.
        id: &'a [u8],
    },
    /// `RATION.RESET policy key`.
    Reset {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
    },
    /// What the daemon's own command line asks.
    Admin(Admin),
    /// `MULTI`.
    Multi,
    /// `EXEC`.
    Exec,
    /// `DISCARD`.
    Discard,
    /// `QUIT`.
    Quit,
    /// `RESET`: the connection as it was when it opened.
    Reconnect,
    /// `HELLO [2|3 [AUTH u p] [SETNAME n]]`.
    Hello {
        /// The protocol asked for.
        protocol: Option<u8>,
        /// The connection's new name.
        name: Option<&'a [u8]>,
    },
    /// `PING [text]`.
    Ping(Option<&'a [u8]>),
    /// `ECHO text`.
    Echo(&'a [u8]),
    /// `EVAL`, `EVALSHA` and `SCRIPT …`.
    Script(Script<'a>),
    /// `CLIENT …`.
    Client(Client<'a>),
    /// A command whose whole answer is `+OK`: `AUTH`, `READONLY`, `READWRITE`, `SELECT 0`.
    Nothing,
    /// `INFO [section …]`.
    Info,
    /// `CLIENT HELP` and its like: of this command.
    Help(&'static str),
    /// `COMMAND …`.
    Commands(Commands),
    /// `CONFIG GET pattern …`.
    ConfigGet,
}

/// What the daemon's own command line asks: answered from the control runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `RATION.RELOAD`.
    Reload,
    /// `RATION.KEYS [CURSOR cursor] [COUNT n]`.
    Keys {
        /// Where the page begins; `None`: the first page, without a word about the next.
        cursor: Option<u128>,
        /// Most keys listed.
        most: usize,
    },
    /// `RATION.POLICIES`.
    Policies,
    /// `RATION.PEERS`.
    Peers,
    /// `RATION.STATS`.
    Stats,
}

/// `CLIENT` and its subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// Answered with `+OK`, and without effect.
    Nothing,
    /// `SETNAME name`.
    SetName(&'a [u8]),
    /// `GETNAME`.
    GetName,
    /// `ID`.
    Id,
    /// `INFO` or `LIST`: one line about this connection.
    Info,
}

/// `COMMAND` and its subcommand. Names to filter by are the arguments from the third on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commands {
    /// All commands, or `INFO` of those named.
    Info,
    /// `COUNT`.
    Count,
    /// `DOCS`.
    Docs,
    /// `LIST`.
    List,
}

/// What is asked about scripts. All that are understood do the same: call `cl.throttle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    /// `EVAL script 1 key max_burst count period [quantity]`: of a script that is understood.
    Eval(&'a [u8]),
    /// `EVALSHA sha1 1 key …`: of a script that came before, or not.
    EvalSha(&'a [u8]),
    /// `SCRIPT LOAD script`: of one that is understood.
    Load(&'a [u8]),
    /// `SCRIPT EXISTS sha1 …`: the arguments from the third on.
    Exists,
    /// `SCRIPT FLUSH`.
    Flush,
}
