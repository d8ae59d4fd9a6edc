//! Sleeps until a queue has frames or another thread wakes the worker.
//!
//! A worker with only empty queues calls [`Waiter::wait`]. For AF_XDP the kernel's poll also
//! sends what is left to send.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Wakes a worker from another thread, as for a new plan or the end.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

/// Waits on queues' file descriptors and a [`Waker`]. No allocation after
/// its start.
#[derive(Debug)]
pub struct Waiter {
    event: Arc<OwnedFd>,
    polled: Vec<libc::pollfd>,
}

impl Waiter {
    /// Waits for any of `fds` to be readable.
    pub fn new(fds: impl IntoIterator<Item = RawFd>) -> io::Result<Waiter> {
        // SAFETY: a call without pointers; the result is checked.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(event) });
        let pollfd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let polled = std::iter::once(event.as_raw_fd()).chain(fds).map(pollfd).collect();
        Ok(Waiter { event, polled })
    }

    /// A handle that ends a wait from any thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { event: Arc::clone(&self.event) }
    }

    /// Returns when a queue has frames, the waker was used or the time is
    /// over. A signal ends it early: the caller's loop looks again.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer and length are those of a live vector.
        let ready = unsafe {
            libc::poll(self.polled.as_mut_ptr(), self.polled.len() as libc::nfds_t, milliseconds)
        };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        if self.polled[0].revents != 0 {
            self.clear();
        }
        Ok(())
    }

    fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are read into eight bytes. It cannot block, and
        // what it returns does not matter: zero wakes are as good as one.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl Waker {
    /// Ends the present wait, or else the next one at once.
    pub fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are written from eight bytes. It fails only
        // where the count is at its end, and then the worker wakes anyway.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_wait_is_not_lost_and_counts_once() {
        let mut waiter = Waiter::new([]).unwrap();
        waiter.waker().wake();
        waiter.waker().wake();
        let start = std::time::Instant::now();
        waiter.wait(Duration::from_secs(60)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
        waiter.wait(Duration::from_millis(1)).unwrap();
    }

    #[test]
    fn a_wake_from_another_thread_ends_the_wait() {
        let mut waiter = Waiter::new([]).unwrap();
        let waker = waiter.waker();
        std::thread::scope(|scope| {
            scope.spawn(move || waker.wake());
            waiter.wait(Duration::from_secs(60)).unwrap();
        });
    }

    #[test]
    fn a_readable_descriptor_ends_the_wait() {
        let mut other = Waiter::new([]).unwrap();
        other.waker().wake();
        let mut waiter = Waiter::new([other.event.as_raw_fd()]).unwrap();
        waiter.wait(Duration::from_secs(60)).unwrap();
        other.wait(Duration::ZERO).unwrap();
    }
}
