//! Commands as typed values: what a client asks for, after its arguments were parsed.
//!
//! Borrows from the request. Knows neither how arguments are written (`parse.rs` does, and adds [`Command::parse`])
//! nor policies, connections and the state of keys. The daemon's sessions execute commands.

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
        /// The numbers of the limit, and whose command it is.
        rate: Rate,
        /// Tokens that are asked for; 0 peeks, and a negative number gives tokens back.
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
    MCheck,
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
        /// How long the hold can be settled, in milliseconds.
        ttl_ms: Option<u64>,
    },
    /// `RATION.SETTLE id actual_cost`.
    Settle {
        /// The id that `HOLD` returned.
        id: &'a [u8],
        /// The actual cost.
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
    /// `RATION.REFUND policy key cost`, or its alias `RATION.RETURN`.
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
        /// The permit's id in the decision of the check.
        id: &'a [u8],
    },
    /// `RATION.RESET policy key`.
    Reset {
        /// The policy's name.
        policy: &'a [u8],
        /// The key.
        key: &'a [u8],
    },
    /// A command of the daemon's own command line.
    Admin(Admin),
    /// `MULTI`.
    Multi,
    /// `EXEC`.
    Exec,
    /// `DISCARD`.
    Discard,
    /// `QUIT`.
    Quit,
    /// `RESET`: resets the connection to its state when it opened.
    ResetConnection,
    /// `HELLO [2|3 [AUTH u p] [SETNAME n]]`.
    Hello {
        /// The protocol asked for.
        protocol: Option<u8>,
        /// The user's name and password.
        login: Option<Login<'a>>,
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
    /// `AUTH [user] password`.
    Auth(Login<'a>),
    /// A command that is only answered with `+OK`: `READONLY`, `READWRITE`, `SELECT 0`.
    NoOp,
    /// `INFO [section …]`.
    Info,
    /// `CLIENT HELP` and the like; the name of the command.
    Help(&'static str),
    /// `COMMAND …`.
    Commands(Commands),
    /// `CONFIG GET pattern …`.
    ConfigGet,
}

/// A user's name, if the client has named one, and a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    /// The user.
    pub user: Option<&'a [u8]>,
    /// The password.
    pub password: &'a [u8],
}

impl std::fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user.map(<[u8]>::escape_ascii)).finish_non_exhaustive()
    }
}

/// A command of the daemon's own command line. The control runtime answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// `RATION.RELOAD [DRYRUN]`.
    Reload {
        /// Tell what would change, and change nothing.
        dry_run: bool,
    },
    /// `RATION.KEYS [CURSOR cursor] [COUNT n]`.
    Keys {
        /// The position at which the page begins. `None` for the first page, whose reply then has no cursor for the
        /// next.
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
    /// `RATION.TOP [COUNT n] [FLEET]`.
    Top {
        /// Most keys of each list.
        most: usize,
        /// Of each node of the fleet.
        fleet: bool,
    },
    /// `RATION.DENIALS`.
    Denials,
}

/// `CLIENT` and its subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// Answered with `+OK`, and without effect.
    NoOp,
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

/// Commands about scripts. All scripts that are recognized only call `cl.throttle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    /// `EVAL script 1 key max_burst count period [quantity]`, whose script is recognized.
    Eval(&'a [u8]),
    /// `EVALSHA sha1 1 key …`. Whether the script was loaded before is not known here.
    EvalSha(&'a [u8]),
    /// `SCRIPT LOAD script`, whose script is recognized.
    Load(&'a [u8]),
    /// `SCRIPT EXISTS sha1 …`. The hashes are the arguments from the third on.
    Exists,
    /// `SCRIPT FLUSH`.
    Flush,
}
