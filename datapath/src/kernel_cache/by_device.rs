//! A worker's regions: one for each device whose filter has a cache, because each filter reads
//! the entries of its own queue.
//!
//! A flow is entered where its packets arrive. When it ends, its entries are removed from all
//! regions: earlier packets may have arrived by another device.

use plan::ServiceId;
use wire::FlowKey;

use super::entries::{CacheRegion, EntryWriter};
use crate::clock::Now;
use crate::counters::CacheCounters;
use crate::verdict::DeviceIndex;

/// The writers of one worker's regions.
#[derive(Debug)]
pub struct EntryWriters<'m> {
    by_device: Vec<(DeviceIndex, EntryWriter<'m>)>,
    /// Which of them is of the device that the batch came in by.
    ingress: Option<usize>,
}

impl<'m> EntryWriters<'m> {
    /// Those of empty regions, by the devices that they belong to.
    #[must_use]
    pub fn new(
        regions: impl IntoIterator<Item = (DeviceIndex, CacheRegion<'m>)>,
        counters: &'m CacheCounters,
    ) -> EntryWriters<'m> {
        let writers = regions.into_iter();
        let by_device =
            writers.map(|(device, region)| (device, EntryWriter::new(region, counters))).collect();
        EntryWriters { by_device, ingress: None }
    }

    /// The next packets come in by that device.
    pub(crate) fn receive_from(&mut self, device: DeviceIndex) {
        self.ingress = self.by_device.iter().position(|(index, _)| *index == device);
    }

    /// The writer of the device that packets come in by; None: it has no cache.
    #[inline(always)]
    pub(crate) fn ingress(&self) -> Option<&EntryWriter<'m>> {
        Some(&self.by_device.get(self.ingress?)?.1)
    }

    /// Takes a flow's entries out: its connection ends.
    pub(crate) fn remove(&self, key: &FlowKey) {
        self.by_device.iter().for_each(|(_, writer)| writer.remove(key));
    }

    /// See [`EntryWriter::begin`].
    pub(crate) fn begin(&mut self, now: Now, refresh: impl Fn(u64, ServiceId) -> bool + Copy) {
        self.by_device.iter_mut().for_each(|(_, writer)| writer.begin(now, refresh));
    }
}
