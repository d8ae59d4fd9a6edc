//! A device made of capture files: it receives the frames of one file and sends into another.
//! It ignores the capture's times; to follow them, replay reads captures itself.

use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::sync::Arc;

use wire::{BATCH_MAX, Batch, FRAME_BYTES_MAX};

use crate::device::{Meter, Queue, Tally};
use crate::driver::{Abilities, Driver, QueueOwners, inherits_nothing, opens_nothing};
use crate::memory::Pool;
use crate::pcap::{Error, Packet, Problem, Reader, Writer};

/// Capture files.
pub static DRIVER: Driver = Driver {
    name: "pcap",
    abilities: Abilities {
        filter: false,
        kernel_interface: false,
        take_over: false,
        kernel_cache: None,
    },
    queues: QueueOwners::Shared,
    chunks: |_| BATCH_MAX,
    pool: Pool::new,
    open: opens_nothing,
    inherit: inherits_nothing,
};

/// A queue from one capture to another.
pub struct PcapQueue<R, W: Write> {
    input: Reader<R>,
    output: Writer<W>,
    /// Of the packet received last: what is sent happens then.
    timestamp_ns: u64,
    failure: Option<Error>,
    tally: Arc<Tally>,
}

impl<R: Read, W: Write> PcapQueue<R, W> {
    /// A queue that receives what `input` holds and writes to `output`.
    pub fn new(input: Reader<R>, output: Writer<W>) -> Self {
        PcapQueue { input, output, timestamp_ns: 0, failure: None, tally: Arc::default() }
    }

    /// Ends the output; the first failure of either file, if there was one.
    pub fn finish(self) -> Result<W, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => self.output.finish().map_err(io_failure),
        }
    }

    /// Counts a packet that no frame can be made of.
    fn fits(&self, packet: &Packet) -> bool {
        let cut_off = (packet.bytes.len() as u64) < u64::from(packet.original_len);
        let too_long = packet.bytes.len() > FRAME_BYTES_MAX;
        self.tally.rx_invalid.add(u64::from(cut_off));
        self.tally.rx_too_long.add(u64::from(too_long && !cut_off));
        !cut_off && !too_long
    }
}

fn io_failure(error: std::io::Error) -> Error {
    Error { path: None, offset: 0, problem: Problem::Io(error) }
}

impl<R: Read + Send, W: Write + Send> Queue for PcapQueue<R, W> {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        while !batch.is_full() && pool.free() > 0 && self.failure.is_none() {
            let packet = match self.input.next() {
                None => return,
                Some(Ok(packet)) => packet,
                Some(Err(error)) => {
                    self.failure = Some(error);
                    return;
                }
            };
            self.timestamp_ns = packet.timestamp_ns;
            if !self.fits(&packet) {
                continue;
            }
            if let Some(frame) = pool.frame_of(&packet.bytes) {
                self.tally.received.add(1);
                self.tally.received_bytes.add(frame.len() as u64);
                batch.push(frame);
            }
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        for frame in batch.drain(..) {
            let len = frame.len();
            match self.output.write(self.timestamp_ns, len as u32, frame.bytes()) {
                Ok(()) => {
                    self.tally.transmitted.add(1);
                    self.tally.transmitted_bytes.add(len as u64);
                }
                Err(error) => {
                    self.tally.tx_invalid.add(1);
                    self.failure.get_or_insert(io_failure(error));
                }
            }
            pool.give_frame(frame);
        }
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn meter(&self) -> Meter {
        Meter::new(&self.tally, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(packets: &[(u64, u32, usize)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for &(timestamp_ns, original_len, len) in packets {
            writer.write(timestamp_ns, original_len, &vec![7; len]).unwrap();
        }
        writer.finish().unwrap()
    }

    fn pass_through(input: &[u8]) -> (Result<Vec<u8>, Error>, crate::QueueCounters) {
        let mut queue =
            PcapQueue::new(Reader::new(input).unwrap(), Writer::new(Vec::new()).unwrap());
        let (mut pool, mut batch) = (Pool::new(4).unwrap(), Batch::new());
        loop {
            queue.rx(&mut pool, &mut batch);
            if batch.is_empty() {
                break;
            }
            queue.tx(&mut pool, &mut batch);
        }
        assert_eq!(pool.free(), 4);
        let counters = queue.meter().read();
        (queue.finish(), counters)
    }

    #[test]
    fn what_is_sent_has_the_time_of_what_was_received_last() {
        let input = capture(&[(5_000, 60, 60)]);
        let (output, counters) = pass_through(&input);
        assert_eq!(output.unwrap(), input);
        assert_eq!((counters.received, counters.transmitted), (1, 1));
    }

    #[test]
    fn what_is_no_frame_is_counted_and_passed_over() {
        let (output, counters) =
            pass_through(&capture(&[(0, 60, 40), (0, 3000, 3000), (0, 60, 60)]));
        assert_eq!(Reader::new(&output.unwrap()[..]).unwrap().count(), 1);
        assert_eq!((counters.received, counters.rx_invalid, counters.rx_too_long), (1, 1, 1));
    }

    #[test]
    fn a_damaged_capture_is_reported_at_the_end() {
        let mut input = capture(&[(0, 60, 60), (0, 60, 60)]);
        input.pop();
        let (output, counters) = pass_through(&input);
        assert_eq!((output.unwrap_err().offset, counters.received), (24 + 16 + 60, 1));
    }
}
