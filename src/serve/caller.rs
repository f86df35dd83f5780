//! Who is at the other end of a connection, and which commands and policies it may use.
//!
//! A process of this host is known by its uid, and may use every policy. A client of the TCP address is known by the
//! user as whom it has authenticated. Called by sessions and for HTTP.

use super::server_state::ServerState;
use super::tcp::users::User;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A process of this host, by its uid.
    Process(u32),
    /// A client of the TCP address, and the user as whom it has authenticated.
    Remote(Option<Box<str>>),
}

/// What a caller may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Anything, before it has authenticated.
    Unknown,
    /// This.
    This,
}

impl Caller {
    /// The caller of a connection whose process has that uid; `None` for the TCP address.
    #[must_use]
    pub fn of(uid: Option<u32>) -> Self {
        uid.map_or(Self::Remote(None), Self::Process)
    }

    /// Whether it may ask at all.
    ///
    /// # Errors
    /// It has to authenticate before.
    #[inline]
    pub fn may_ask(&self, state: &ServerState) -> Result<(), Forbidden> {
        self.may(state, |_| true)
    }

    /// Whether it may ask for the policy of that name.
    ///
    /// # Errors
    /// It may not.
    #[inline]
    pub fn may_use(&self, state: &ServerState, policy: &str) -> Result<(), Forbidden> {
        self.may(state, |user| user.may_use(policy))
    }

    /// Whether its commands may bring limits along.
    ///
    /// # Errors
    /// They may not.
    #[inline]
    pub fn may_bring_limits(&self, state: &ServerState) -> Result<(), Forbidden> {
        self.may(state, User::may_bring_limits)
    }

    /// Whether it may run administrative commands.
    #[must_use]
    pub fn may_administer(&self, state: &ServerState) -> bool {
        match self {
            Self::Process(uid) => state.admission.rights.has(*uid),
            Self::Remote(name) => {
                let access = state.remote.load();
                let user = access.users.as_ref().zip(name.as_deref()).and_then(|(users, name)| users.get(name));
                user.is_some_and(|user| user.is_admin)
            }
        }
    }

    /// Whether `is_allowed` of its user, where clients have to be users. The users are looked up each time, so that a
    /// reload changes the rights of connections that are open.
    #[inline]
    fn may(&self, state: &ServerState, is_allowed: impl FnOnce(&User) -> bool) -> Result<(), Forbidden> {
        match self {
            Self::Process(_) => Ok(()),
            Self::Remote(name) => Self::user_may(name.as_deref(), state, is_allowed),
        }
    }

    /// The same for a client of the TCP address. Apart, so that the checks of processes do not pay for it.
    #[inline(never)]
    fn user_may(
        name: Option<&str>,
        state: &ServerState,
        is_allowed: impl FnOnce(&User) -> bool,
    ) -> Result<(), Forbidden> {
        let access = state.remote.load();
        let Some(users) = &access.users else { return Ok(()) };
        match name.and_then(|name| users.get(name)) {
            None => Err(Forbidden::Unknown),
            Some(user) if is_allowed(user) => Ok(()),
            Some(_) => Err(Forbidden::This),
        }
    }
}
