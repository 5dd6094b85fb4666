//! Which nodes get the replicas of a new object: first those requested by name, then those close to the
//! writer, then those with the most free memory.

use super::{catalog::NodeIndex, members::Member};
use crate::SegmentId;

/// The writer's location and preferences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'a> {
    pub(super) preferred: &'a [String],
    pub(super) home: Option<SegmentId>,
    pub(super) host: &'a str,
}

/// The nodes, best first.
pub(super) fn rank<'a>(
    members: impl Iterator<Item = (NodeIndex, &'a Member)>,
    wish: Wish<'_>,
) -> Vec<NodeIndex> {
    let mut ranked: Vec<_> = members.map(|(node, member)| (cost(member, wish), node)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, node)| node).collect()
}

fn cost(member: &Member, wish: Wish<'_>) -> (usize, u8, std::cmp::Reverse<u64>) {
    let asked_for = wish.preferred.iter().position(|name| *name == member.info.name);
    let far = match () {
        () if wish.home == Some(member.info.segment) => 0,
        () if !wish.host.is_empty() && wish.host == member.info.host => 1,
        () => 2,
    };
    (asked_for.unwrap_or(usize::MAX), far, std::cmp::Reverse(member.free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Tick,
        master::members::Standing,
        message::{NodeInfo, Usage},
    };

    fn member(segment: u64, host: &str, free: u64) -> Member {
        let info = NodeInfo {
            segment: SegmentId(segment),
            name: format!("n{segment}"),
            host: host.into(),
            ..NodeInfo::default()
        };
        let mut member = Member::new(info, Usage::default(), Tick(0));
        (member.standing, member.free) = (Standing::Ready, free);
        member
    }

    /// The order in which `n1` (host a), `n2` (host b), `n3` (host b, emptier) are tried.
    fn check(preferred: &[&str], home: Option<u64>, host: &str, expected: [u16; 3]) {
        let members = [member(1, "a", 10), member(2, "b", 10), member(3, "b", 99)];
        let preferred: Vec<_> = preferred.iter().map(|it| (*it).to_owned()).collect();
        let wish = Wish { preferred: &preferred, home: home.map(SegmentId), host };
        let numbered = members.iter().zip(1..).map(|(member, index)| (NodeIndex(index), member));
        assert_eq!(rank(numbered, wish), expected.map(NodeIndex));
    }

    #[test]
    fn preference_then_locality_then_free_memory() {
        check(&[], None, "", [3, 1, 2]);
        check(&[], None, "a", [1, 3, 2]);
        check(&[], Some(2), "a", [2, 1, 3]);
        check(&["n2"], Some(1), "a", [2, 1, 3]);
        check(&["n3", "n2"], Some(1), "a", [3, 2, 1]);
        check(&["nosuch"], None, "", [3, 1, 2]);
    }
}
