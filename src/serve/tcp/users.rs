//! The users of the TCP address: their passwords, and what each of them may do.
//!
//! They are kept in a TOML file of their own, one table for each user, because it is secret where the configuration is
//! not. Passwords are kept as their SHA-256, like those of Redis' ACL files, so they must be long and random: a hash
//! that somebody steals lets them try words of a dictionary.

use std::collections::{BTreeMap, BTreeSet};

use ring::digest::{SHA256, digest};
use serde::Deserialize;

use crate::core::policy::PolicySet;

/// The user of a client that names none: `AUTH password`.
pub const DEFAULT: &str = "default";

/// What one user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    password: [u8; 32],
    /// The policies that it may ask for; `None` for all, and for limits that its commands bring along.
    policies: Option<BTreeSet<String>>,
    /// Whether it may run administrative commands.
    pub is_admin: bool,
}

/// All users by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<String, User>);

/// A user as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    password_sha256: String,
    #[serde(default)]
    policies: Option<BTreeSet<String>>,
    #[serde(default)]
    admin: bool,
}

impl Users {
    /// Reads the text of a users' file.
    ///
    /// # Errors
    /// What is wrong with it, in words for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        // An error of the parser may quote the line, and that may hold a password that somebody wrote in plain.
        let written: BTreeMap<String, Written> = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!("line {line}: {}", error.message())
        })?;
        if written.is_empty() {
            return Err("has no user, so nobody could connect: [NAME] with password_sha256 = \"…\" was wanted".into());
        }
        written
            .into_iter()
            .map(|(name, user)| Ok((name.clone(), user.read(&name)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether `name` is a user with this password.
    #[must_use]
    pub fn is_right(&self, name: &str, password: &[u8]) -> bool {
        // The hash is computed in any case, so that the time does not tell which names there are.
        let seen = digest(&SHA256, password);
        self.0.get(name).is_some_and(|user| user.password == seen.as_ref())
    }

    /// What the user of that name may do; `None` when there is none by now.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&User> {
        self.0.get(name)
    }

    /// The policies that users are given and that do not exist, each with the user's name.
    pub fn unknown_policies<'a>(&'a self, policies: &'a PolicySet) -> impl Iterator<Item = (&'a str, &'a str)> {
        let of = |(name, user): (&'a String, &'a User)| {
            user.policies.iter().flatten().map(move |policy| (name.as_str(), policy.as_str()))
        };
        self.0.iter().flat_map(of).filter(|(_, policy)| policies.get(policy).is_none())
    }
}

impl User {
    /// Whether it may ask for the policy of that name.
    #[must_use]
    pub fn may_use(&self, policy: &str) -> bool {
        self.policies.as_ref().is_none_or(|policies| policies.contains(policy))
    }

    /// Whether it may bring limits along in its commands (`CL.THROTTLE` and the like).
    #[must_use]
    pub fn may_bring_limits(&self) -> bool {
        self.policies.is_none()
    }
}

impl Written {
    fn read(self, name: &str) -> Result<User, String> {
        let bytes = hex(&self.password_sha256).ok_or_else(|| {
            format!(
                "[{name}] password_sha256 is no SHA-256: 64 hexadecimal digits were wanted, as \
                 `printf %s \"$password\" | sha256sum` prints them"
            )
        })?;
        Ok(User { password: bytes, policies: self.policies, is_admin: self.admin })
    }
}

fn hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? * 16 + low?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of "secret".
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn a_user_has_the_password_whose_hash_is_written() {
        let users = Users::parse(&format!("[app]\npassword_sha256 = \"{SECRET}\"\n")).expect("it is right");
        assert!(users.is_right("app", b"secret"));
        assert!(!users.is_right("app", b"Secret"));
        assert!(!users.is_right("other", b"secret"));
    }

    #[test]
    fn a_user_may_use_all_policies_unless_some_are_listed() {
        let text = format!(
            "[all]\npassword_sha256 = \"{SECRET}\"\n[one]\npassword_sha256 = \"{SECRET}\"\npolicies = [\"api\"]\n"
        );
        let users = Users::parse(&text).expect("it is right");
        let [all, one] = ["all", "one"].map(|name| users.get(name).expect("it is there"));
        assert!(all.may_use("api") && all.may_use("login") && all.may_bring_limits() && !all.is_admin);
        assert!(one.may_use("api") && !one.may_use("login") && !one.may_bring_limits());
        let none = PolicySet::default();
        let unknown: Vec<_> = users.unknown_policies(&none).collect();
        assert_eq!(unknown, [("one", "api")]);
    }

    #[test]
    fn what_is_wrong_is_said_without_quoting_a_password() {
        for (text, said) in [
            ("", "has no user"),
            ("[app]\npassword_sha256 = \"hunter2\"\n", "[app] password_sha256 is no SHA-256: 64 hexadecimal digits"),
            ("[app]\n", "missing field `password_sha256`"),
            ("[app]\npassword = \"hunter2\"\n", "line 2: unknown field `password`"),
            ("[app\n", "line 1: "),
        ] {
            let error = Users::parse(text).expect_err(text);
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
