//! Whether a controller is present. Without one the forwarder continues with its last plan, and
//! changes of the backends' health have no effect, so this must be reported.
//!
//! A controller requests the status every 100 ms, with its own user, over the socket that
//! accepts plans. Time is an argument, in milliseconds of a monotonic clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Without a request for this long, there is none. The speaker waits as long.
const TIMEOUT: Duration = Duration::from_secs(2);

/// When a controller's last request came.
#[derive(Debug)]
pub struct ControllerPresence {
    heard_ms: AtomicU64,
    told_absent: AtomicBool,
}

/// What changed, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// None since so long.
    Absent(Duration),
    /// There is one again.
    Back,
}

impl ControllerPresence {
    /// As if one had been heard now: a process that starts gives it time.
    #[must_use]
    pub fn new(now_ms: u64) -> ControllerPresence {
        ControllerPresence { heard_ms: now_ms.into(), told_absent: false.into() }
    }

    /// A request of a controller came.
    pub fn heard(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Since when there is none; zero: there is one.
    #[must_use]
    pub fn absent(&self, now_ms: u64) -> Duration {
        let since = now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        let since = Duration::from_millis(since);
        if since < TIMEOUT { Duration::ZERO } else { since }
    }

    /// What changed since the last call.
    #[must_use]
    pub fn change(&self, now_ms: u64) -> Option<Change> {
        let absent = self.absent(now_ms);
        let told = self.told_absent.swap(!absent.is_zero(), Ordering::Relaxed);
        match (told, absent.is_zero()) {
            (false, false) => Some(Change::Absent(absent)),
            (true, true) => Some(Change::Back),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_absent_two_seconds_after_its_last_request_and_told_once() {
        let presence = ControllerPresence::new(10_000);
        assert_eq!((presence.absent(11_999), presence.change(11_999)), (Duration::ZERO, None));
        let since = Duration::from_millis(2500);
        assert_eq!(
            (presence.absent(12_500), presence.change(12_500)),
            (since, Some(Change::Absent(since)))
        );
        assert_eq!(presence.change(13_000), None);
        presence.heard(13_100);
        assert_eq!(
            (presence.absent(13_200), presence.change(13_200)),
            (Duration::ZERO, Some(Change::Back))
        );
        assert_eq!(presence.change(13_300), None);
    }
}
