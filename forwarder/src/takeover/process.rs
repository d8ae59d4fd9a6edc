//! The process at the other end, by a descriptor of it (pidfd): unlike a number it never refers
//! to another process.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// A process that lives, or did.
#[derive(Debug)]
pub struct Process {
    /// For people and for the service manager.
    pub pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// This one.
    pub fn own() -> io::Result<Process> {
        let handle = pidfd_open(getpid(), PidfdFlags::empty())?;
        Ok(Process { pid: std::process::id(), handle })
    }

    /// One that sent its number and a descriptor of itself.
    #[must_use]
    pub fn other(pid: u32, handle: OwnedFd) -> Process {
        Process { pid, handle }
    }

    /// For the other end.
    #[must_use]
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// True if it has ended, or does so in time: none of its threads runs any
    /// more, and its descriptors are closed.
    #[must_use]
    pub fn is_gone(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).expect("some seconds");
        let mut descriptors = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// True if one of its threads runs, or waits for a processor or for the kernel, which
    /// has one lock for all that changes interfaces. Of one that sleeps or was stopped
    /// nothing is to be hoped.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        tasks.flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // Behind the name, which is in parentheses and may hold any character.
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 'D']))
        })
    }

    /// Ends it at once.
    pub fn kill(&self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_process_is_gone_and_a_running_one_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let process = Process::other(child.id(), handle);
        assert!(!process.is_gone(Duration::from_millis(10)));
        process.kill();
        assert!(process.is_gone(Duration::from_secs(5)));
        child.wait().unwrap();
        assert!(!Process::own().unwrap().is_gone(Duration::ZERO));
    }

    #[test]
    fn a_process_that_runs_is_at_work_and_one_that_was_stopped_is_not() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = Process::other(child.id(), pidfd_open(pid, PidfdFlags::empty()).unwrap());
        assert!(process.is_at_work());
        pidfd_send_signal(&process.handle, Signal::STOP).unwrap();
        while process.is_at_work() {
            std::thread::yield_now(); // until the signal has reached it
        }
        process.kill();
        child.wait().unwrap();
        assert!(!process.is_at_work());
    }
}
