//! Memory of simulated load balancers. Mappings last as long as the process, so packet memory
//! is reused by the next one.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use datapath::outbox::ORIGINATED_MAX;
use nic::{Pool, mapping};
use wire::BATCH_MAX;

/// Chunks of a worker: a batch that arrives and one whose answers are on their
/// way, and what may be originated in a round and on the slow path.
pub const CHUNKS: usize = 2 * (BATCH_MAX + ORIGINATED_MAX);

/// Larger tables are worth a huge page, of which they take a quarter.
const SMALL_BYTES_MAX: usize = 512 << 10;

static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

/// Packet memory of [`CHUNKS`] chunks, all free.
pub fn take_pool() -> io::Result<Pool> {
    let kept = POOLS.lock().unwrap_or_else(PoisonError::into_inner).pop();
    kept.map_or_else(|| Pool::new(CHUNKS), Ok)
}

/// Keeps packet memory for the next; with a chunk missing it is not used again.
pub fn keep_pool(pool: Pool) {
    if pool.free() == CHUNKS {
        POOLS.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
    }
}

/// Memory for a connection table, of zeros, never given back; as in the
/// forwarder on huge pages, but for small ones.
pub fn table(words: usize) -> io::Result<&'static [AtomicU64]> {
    if words * size_of::<AtomicU64>() <= SMALL_BYTES_MAX {
        return Ok(Vec::leak((0..words).map(|_| AtomicU64::new(0)).collect()));
    }
    mapping::anonymous(words)
}
