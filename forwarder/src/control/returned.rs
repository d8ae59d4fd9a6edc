//! Interfaces that were removed and exist again: to the kernel they are new ones, and nothing
//! opened on the old ones receives or sends.
//!
//! A machine without one of its interfaces has no routes (`observe/health`). So the process
//! restarts once all of them exist: to keep the sockets and packets of the other interfaces, as
//! a reload does, would save nothing.

use std::collections::BTreeSet;

use nic::Interface;

/// What was seen last.
#[derive(Debug, Default)]
pub struct Returned {
    /// Interfaces that were gone.
    gone: BTreeSet<String>,
    /// All were there, and up.
    complete: bool,
}

impl Returned {
    /// Looks at the interfaces that are forwarded on: names, and whether what was opened
    /// is there. True: some were not, all have come again and are up, and were so at the
    /// last look, too.
    pub fn look<'d>(
        &mut self,
        opened: impl Iterator<Item = (&'d str, bool)>,
        is_up: impl Fn(&str) -> bool,
    ) -> bool {
        let gone: BTreeSet<&str> =
            opened.filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect();
        for name in gone.iter().filter(|name| !self.gone.contains(**name)) {
            tracing::error!(
                interface = name,
                "an interface is gone: starting anew when it is there again, and up"
            );
        }
        let complete = !gone.is_empty() && gone.iter().all(|name| is_up(name));
        let is_due = complete && self.complete;
        self.complete = complete;
        self.gone = gone.into_iter().map(str::to_owned).collect();
        is_due
    }
}

/// The kernel's number for the interface of that name.
pub fn index_of(name: &str) -> Option<u32> {
    Some(Interface::find(name).ok()?.index)
}

/// Whether there is an interface of that name that is set up.
pub fn is_up(name: &str) -> bool {
    Interface::find(name).is_ok_and(|found| found.up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_time_at_the_second_look_at_which_all_are_there_again() {
        let mut returned = Returned::default();
        let mut look = |eth0: bool, eth1: bool, up: &[&str]| {
            returned.look([("eth0", eth0), ("eth1", eth1)].into_iter(), |name| up.contains(&name))
        };
        assert!(!look(true, true, &["eth0", "eth1"]), "nothing is gone");
        assert!(!look(true, true, &[]), "what is down is not gone");
        assert!(!look(true, false, &["eth0"]));
        assert!(!look(true, false, &["eth0", "eth1"]), "it may be about to go again");
        assert!(!look(false, false, &["eth1"]), "another one went");
        assert!(!look(false, false, &["eth0", "eth1"]));
        assert!(look(false, false, &["eth0", "eth1"]));
    }
}
