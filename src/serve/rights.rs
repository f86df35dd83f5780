//! Decides which users may run administrative commands: reset a key, reload the policies, list keys.

/// The users who may run administrative commands.
#[derive(Debug)]
pub struct Rights {
    listed: Option<Vec<u32>>,
    /// The daemon's own user.
    own: u32,
}

impl Rights {
    /// The `listed` users; `None` for root and the daemon's own user.
    #[must_use]
    pub fn new(listed: Option<Vec<u32>>) -> Self {
        Self { listed, own: rustix::process::geteuid().as_raw() }
    }

    /// Whether processes of this user may.
    #[must_use]
    pub fn has(&self, uid: u32) -> bool {
        match &self.listed {
            Some(listed) => listed.contains(&uid),
            None => uid == 0 || uid == self.own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_may_unless_others_are_listed() {
        let unset = Rights { listed: None, own: 7 };
        assert_eq!([0, 7, 8].map(|uid| unset.has(uid)), [true, true, false]);
        let listed = Rights { listed: Some(vec![8]), own: 7 };
        assert_eq!([0, 7, 8].map(|uid| listed.has(uid)), [false, false, true]);
    }
}
