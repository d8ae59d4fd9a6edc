//! Identifies the process at the other end of a local socket, and chooses the connection to
//! close if there are too many.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::sockopt::socket_peercred;

/// The other end of a connection, as the kernel tells (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The user of the process that connected.
    pub user: u32,
    /// That process.
    pub process: i32,
}

impl Peer {
    /// Of a connected socket; none: the kernel does not say.
    pub fn of(socket: impl AsFd) -> Option<Peer> {
        let peer = socket_peercred(socket).ok()?;
        Some(Peer { user: peer.uid.as_raw(), process: peer.pid.as_raw_nonzero().get() })
    }
}

/// Which connection is to end for a new one: of the user that has the most, of
/// that user's process that has the most, the one that was used the longest ago.
/// So nobody takes the place of another user who has fewer.
pub fn dispensable(used: impl Iterator<Item = (Peer, Instant)> + Clone) -> Option<usize> {
    let mut of_user = BTreeMap::<u32, usize>::new();
    let mut of_process = BTreeMap::<Peer, usize>::new();
    for (peer, _) in used.clone() {
        *of_user.entry(peer.user).or_default() += 1;
        *of_process.entry(peer).or_default() += 1;
    }
    let rank = |(_, (peer, used)): &(usize, (Peer, Instant))| {
        (of_user[&peer.user], of_process[peer], used.elapsed())
    };
    used.enumerate().max_by_key(rank).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_processes_of_one_user_cannot_take_another_users_place() {
        let now = Instant::now();
        let client = |user, process, idle_ms| {
            (Peer { user, process }, now.checked_sub(Duration::from_millis(idle_ms)).unwrap())
        };
        // The idlest of all is the only one of its user, and all processes have one
        // connection.
        let mut clients = vec![client(998, 1, 90)];
        clients.extend((2..=15).map(|process| client(1000, process, u64::from(process == 7))));
        clients.push(client(997, 16, 50));
        assert_eq!(dispensable(clients.into_iter()), Some(6));
        assert_eq!(dispensable(std::iter::empty()), None);
    }
}
