//! The cost of finding a Multipath TCP key whose token belongs to a given backend, by
//! trial: the servers' task if load balancers did not choose the keys (MPLB, section 3.1: 2
//! ms among 1,000 backends).

use std::hint::black_box;

use datapath::multipath::token;
use wire::tcp_options::Version;

use crate::clock::{Samples, timed};
use crate::random::Random;

/// As many as the paper has.
pub const KEY_BACKENDS: u32 = 1000;
/// In a sample, because one alone may be lucky.
const SEARCHES: u32 = 50;

/// The search under one version of the protocol.
#[derive(Debug)]
pub struct Search {
    /// The version: `v0`, `v1`.
    pub name: &'static str,
    /// Microseconds for a key.
    pub us: Samples,
}

impl Search {
    /// Under a version, by its name.
    #[must_use]
    pub fn new(name: &'static str) -> Search {
        Search { name, us: Samples::default() }
    }

    /// Finds some keys.
    pub fn sample(&mut self) {
        let version = if self.name == "v0" { Version::V0 { client_key: 0 } } else { Version::V1 };
        let mut random = Random::new(0x6b65_7973);
        let ns = timed(|| {
            for backend in 0..SEARCHES {
                black_box(find(version, backend, &mut random));
            }
        });
        self.us.push(ns as f64 / 1e3 / f64::from(SEARCHES));
    }
}

/// A random key whose token is that backend's.
fn find(version: Version, backend: u32, random: &mut Random) -> u64 {
    loop {
        let key = random.bits();
        if token(version, key) % KEY_BACKENDS == backend {
            return key;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_found_is_the_backends() {
        let mut random = Random::new(7);
        for version in [Version::V0 { client_key: 0 }, Version::V1] {
            for backend in [0, 1, 999] {
                let key = find(version, backend, &mut random);
                assert_eq!(token(version, key) % KEY_BACKENDS, backend);
            }
        }
    }
}
