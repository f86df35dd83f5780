//! The list of live nodes, from which shares, digests and `rationd peers` are made.

use std::net::SocketAddr;

use super::peer::PeerId;

/// Whether a member has announced that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// It serves.
    Up,
    /// It has announced that it will leave.
    Leaving,
}

impl MemberState {
    /// The state's name in gossip.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Leaving => "leaving",
        }
    }
}

/// Whether a node takes part in leasing for others: see `core::owners`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owning {
    /// It asks no peer, and no peer asks it.
    #[default]
    Never,
    /// It asks peers, and owns keys unless the fleet is large and others do.
    Auto,
    /// It asks peers, and owns keys in any fleet.
    Always,
}

impl Owning {
    /// Its name in configurations and in gossip.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }

    /// Reads what a node reports of itself. One that reports nothing, as earlier versions do, counts as
    /// [`Self::Never`].
    pub(crate) fn reported(word: Option<&str>) -> Self {
        [Self::Auto, Self::Always].into_iter().find(|owning| word == Some(owning.as_str())).unwrap_or_default()
    }
}

/// A live node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub id: PeerId,
    /// The address at which its peers reach it.
    pub address: SocketAddr,
    /// Whether it has announced that it leaves.
    pub state: MemberState,
    /// Its version of rationd; empty until it has reported it.
    pub version: String,
    /// Whether it owns keys for others.
    pub owning: Owning,
}

/// The live nodes, including this one. Each name occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    list: Vec<Member>,
}

impl Members {
    /// Keeps the latest incarnation of each name, sorted by name. `own` always stays as it is given.
    pub(crate) fn new(own: Member, others: impl IntoIterator<Item = Member>) -> Self {
        let name = own.id.name.clone();
        others.into_iter().filter(|other| other.id.name != name).chain([own]).collect()
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.list.iter()
    }

    /// Their number; at least 1, because this node is one of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none, which is only so before a fleet is started.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The member with the identity `id`.
    #[must_use]
    pub fn get(&self, id: &PeerId) -> Option<&Member> {
        self.list.binary_search_by(|member| member.id.cmp(id)).ok().map(|index| &self.list[index])
    }
}

impl FromIterator<Member> for Members {
    /// Keeps the latest incarnation of each name, sorted by name.
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> Self {
        let mut list: Vec<_> = members.into_iter().collect();
        list.sort_by(|a, b| a.id.cmp(&b.id));
        list.reverse();
        list.dedup_by(|earlier, later| earlier.id.name == later.id.name);
        list.reverse();
        Self { list }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, incarnation: u64) -> Member {
        let id = PeerId { name: name.into(), incarnation };
        let address = "127.0.0.1:1".parse().expect("an address");
        Member { id, address, state: MemberState::Up, version: String::new(), owning: Owning::Never }
    }

    #[test]
    fn of_each_name_the_latest_life_stands_in_the_list() {
        let members = Members::new(member("b", 1), [member("c", 3), member("a", 1), member("c", 4), member("c", 2)]);
        let seen: Vec<_> = members.iter().map(|member| member.id.to_string()).collect();
        assert_eq!(seen, ["a@1", "b@1", "c@4"]);
        assert!(members.get(&member("c", 4).id).is_some() && members.get(&member("c", 3).id).is_none());
    }

    #[test]
    fn who_says_nothing_of_it_or_something_unknown_owns_nothing() {
        let reported = [Some("auto"), Some("always"), Some("never"), Some("sometimes"), None].map(Owning::reported);
        assert_eq!(reported, [Owning::Auto, Owning::Always, Owning::Never, Owning::Never, Owning::Never]);
    }

    #[test]
    fn this_node_stands_in_it_whoever_else_has_its_name() {
        let members = Members::new(member("a", 1), [member("a", 2)]);
        assert_eq!(members.iter().map(|member| member.id.incarnation).collect::<Vec<_>>(), [1]);
    }
}
