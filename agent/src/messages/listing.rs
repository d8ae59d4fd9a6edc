//! Lists the connections that live here, once for all controllers.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use wire::FlowKey;

use crate::flows::Flows;
use crate::redirects::Living;
use crate::sockets;
use crate::timestamps::Clocks;

/// All connections at one moment.
#[derive(Debug)]
pub struct Listing {
    /// When it was begun.
    pub made: Instant,
    took: Duration,
    /// The flows of clients' packets, and the bits in their timestamps.
    pub flows: Vec<(FlowKey, Option<u16>)>,
}

/// What lists them: the kernel's sockets, and what the programs know beside these.
pub struct Listings {
    flows: Flows,
    clocks: Clocks,
    redirected: Living,
    latest: Mutex<Option<Arc<Listing>>>,
}

impl Listings {
    /// Of the sockets here, these flows, what timestamps have, and of the connections
    /// elsewhere that rules here lead to.
    pub fn new(flows: Flows, clocks: Clocks, redirected: Living) -> Listings {
        Listings { flows, clocks, redirected, latest: Mutex::new(None) }
    }

    /// One that is no older than half of `interval`, or than it may be for what it takes.
    pub fn latest(&self, interval: Duration) -> io::Result<Arc<Listing>> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = &*latest
            && listing.made.elapsed() < (interval / 2).max(listing.took * sockets::PAUSE)
        {
            return Ok(Arc::clone(listing));
        }
        let made = Instant::now();
        let flows = self.list()?;
        let listing = Arc::new(Listing { made, took: made.elapsed(), flows });
        *latest = Some(Arc::clone(&listing));
        Ok(listing)
    }

    fn list(&self) -> io::Result<Vec<(FlowKey, Option<u16>)>> {
        let connections = sockets::connections()?;
        let mut living: Vec<_> = connections.into_iter().map(|(flow, _)| flow).collect();
        living.extend(self.flows.recent().map_err(io::Error::other)?);
        living.extend(self.redirected.flows().map_err(io::Error::other)?);
        Ok(living.into_iter().map(|flow| (flow, self.clocks.bits(&flow))).collect())
    }
}
