//! A worker without devices, and the slow path beside it on the same thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::batch::Verdicts;
use datapath::table::{ConnectionTable, HEADER_WORDS, Identity, words_for};
use datapath::{
    Clock, Counters, Datapath, NoRecorder, Outbox, Secret, SlowPath, TableReader, Verdict, View,
};
use wire::Batch;

/// The cluster whose derived key hashes all flows here.
pub const CLUSTER: &str = "bench";

/// A worker and all it needs.
pub struct Worker {
    /// What it forwards by.
    pub view: Arc<View>,
    /// Its counters, and the slow path's.
    pub counters: &'static Counters,
    /// Its connection table as others see it.
    pub table: TableReader<'static>,
    /// Bytes of the connection table.
    pub table_bytes: usize,
    datapath: Datapath<'static>,
    slow: SlowPath<'static>,
    outbox: Outbox<'static>,
    verdicts: Verdicts,
    words: &'static [AtomicU64],
}

impl Worker {
    /// Worker `index` of those that the view was made for, with an empty
    /// table for this number of connections.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(view: Arc<View>, index: usize, connections: u64) -> Result<Worker, String> {
        // As in the forwarder: on huge pages where there are some.
        let words = nic::mapping::anonymous(words_for(connections)).map_err(|error| {
            format!("memory for a connection table of {connections} connections: {error}")
        })?;
        let identity = Identity { key: 1, ids_epoch: 1, worker: 0, workers: 1 };
        let (table, _) = ConnectionTable::open(words, &identity);
        // Workers live as long as the process, and so do their counters.
        let counters: &'static Counters = Box::leak(Box::default());
        let (secret, reader) = (Secret::derived(CLUSTER), TableReader::new(words));
        Ok(Worker {
            view,
            counters,
            table: reader,
            table_bytes: size_of_val(words),
            datapath: Datapath::new(&secret, table, counters, Clock::default(), index),
            slow: SlowPath::new(&secret, vec![reader], counters, Clock::default()),
            outbox: Outbox::default(),
            verdicts: Verdicts::new(),
            words,
        })
    }

    /// Forwards a batch at that moment: the whole journey, verdicts counted.
    #[inline]
    pub fn forward(&mut self, now_ms: u32, batch: &mut Batch<'static>) {
        self.datapath.begin(now_ms, &self.view);
        self.datapath.forward_batch(&self.view, batch, &mut self.outbox, &mut self.verdicts);
        for (frame, verdict) in batch.iter_mut().zip(&mut self.verdicts) {
            // As nearly all are.
            if let Verdict::Send(_) = verdict {
                self.counters.sent.add(1);
                continue;
            }
            if let Verdict::Slow(recursion_limit) = *verdict {
                self.slow.begin(now_ms);
                *verdict = self.slow.forward(
                    &self.view,
                    frame,
                    recursion_limit,
                    &mut self.outbox,
                    &mut NoRecorder,
                );
            }
            self.counters.count(*verdict);
        }
    }

    /// Forgets all connections. The header stays.
    pub fn clear(&self) {
        for word in &self.words[HEADER_WORDS..] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Packets that found their connection's entry, and those that did not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.counters.connections.hits.get(), self.counters.connections.misses.get())
    }
}
