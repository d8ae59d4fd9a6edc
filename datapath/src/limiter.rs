//! A limit on what we originate, so that nobody can make us shout.

use std::cell::Cell;

use crate::clock::Now;

/// A token bucket: so many a second, a second's worth at once.
#[derive(Debug)]
pub struct Limiter {
    per_second: u64,
    /// Thousandths of a token: a millisecond adds `per_second` of them.
    credit: Cell<u64>,
    seen: Cell<Now>,
}

impl Limiter {
    /// Allows `per_second`, the first second's at once.
    #[must_use]
    pub fn new(per_second: u64) -> Limiter {
        Limiter { per_second, credit: Cell::new(per_second * 1000), seen: Cell::new(Now(0)) }
    }

    /// Takes a token; false: there is none.
    pub fn allows(&self, now: Now) -> bool {
        let elapsed_ms = now.0.saturating_sub(self.seen.replace(now).0).min(1000);
        let credit = (self.credit.get() + elapsed_ms * self.per_second).min(self.per_second * 1000);
        let allowed = credit >= 1000;
        self.credit.set(if allowed { credit - 1000 } else { credit });
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_tokens_then_as_time_goes() {
        let limiter = Limiter::new(10);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(5))).count(), 10);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(205))).count(), 2);
        assert_eq!((0..20).filter(|_| limiter.allows(Now(100_000))).count(), 10);
    }
}
