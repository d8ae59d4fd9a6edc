//! The datapath's time.

/// A moment in milliseconds since some fixed point, never going back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now(pub u64);

/// Turns the u32 milliseconds of a monotonic clock, which wrap after 49.7
/// days, into a [`Now`] that does not. To be asked more often than the wrap.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    now: Option<Now>,
}

impl Clock {
    /// A clock that goes on from `now`, for tables taken over.
    #[must_use]
    pub fn resume(now: Now) -> Clock {
        Clock { now: Some(now) }
    }

    /// The moment that `ms` stands for. A step back of less than half the
    /// range counts as no step.
    pub fn advance(&mut self, ms: u32) -> Now {
        let now = match self.now {
            None => Now(u64::from(ms)),
            Some(before) => {
                let step = ms.wrapping_sub(before.0 as u32);
                Now(before.0 + if step <= i32::MAX as u32 { u64::from(step) } else { 0 })
            }
        };
        self.now = Some(now);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_over_the_wrap_and_never_back() {
        let mut clock = Clock::default();
        assert_eq!(clock.advance(u32::MAX - 1), Now(u64::from(u32::MAX) - 1));
        assert_eq!(clock.advance(3), Now(u64::from(u32::MAX) + 4));
        assert_eq!(clock.advance(1), Now(u64::from(u32::MAX) + 4));
    }
}
