//! Who may do what concerns others: forget a key, reload the policies, list keys.

/// The users who may.
#[derive(Debug)]
pub struct Rights {
    listed: Option<Vec<u32>>,
    /// The daemon's own user, where the operating system tells it.
    own: Option<u32>,
}

impl Rights {
    /// Those that are `listed`; `None`: root and the daemon's own user.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(listed: Option<Vec<u32>>) -> Self {
        // The kernel tells whoever is connected to a process whose it is.
        let own = tokio::net::UnixStream::pair().and_then(|(one, _other)| one.peer_cred()).map(|cred| cred.uid()).ok();
        Self { listed, own }
    }

    /// Whether processes of this user may.
    #[must_use]
    pub fn has(&self, uid: u32) -> bool {
        match &self.listed {
            Some(listed) => listed.contains(&uid),
            None => uid == 0 || self.own == Some(uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_may_unless_others_are_listed() {
        let unset = Rights { listed: None, own: Some(7) };
        assert_eq!([0, 7, 8].map(|uid| unset.has(uid)), [true, true, false]);
        let nobody_known = Rights { listed: None, own: None };
        assert_eq!([0, 7].map(|uid| nobody_known.has(uid)), [true, false]);
        let listed = Rights { listed: Some(vec![8]), own: Some(7) };
        assert_eq!([0, 7, 8].map(|uid| listed.has(uid)), [false, false, true]);
    }
}
