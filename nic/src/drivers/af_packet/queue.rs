//! A packet socket as a queue: a batch each way is one system call.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use wire::{BATCH_MAX, Batch, Frame, HEADROOM_BYTES};

use super::socket;
use crate::device::{KernelCounters, Meter, Queue, QueueCounters, Tally};
use crate::memory::Pool;

/// struct virtio_net_hdr: what the kernel has left undone of a frame.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Undone {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// One socket, or one of a group.
pub struct PacketQueue {
    fd: Arc<OwnedFd>,
    messages: Box<Messages>,
    tally: Arc<Tally>,
    statistics: Arc<Statistics>,
}

/// The arguments of the system calls. The pointers in it are set anew before
/// each and mean nothing afterwards.
struct Messages {
    headers: [libc::mmsghdr; BATCH_MAX],
    parts: [[libc::iovec; 2]; BATCH_MAX],
    undone: [Undone; BATCH_MAX],
}

// SAFETY: the raw pointers are never used after the call that they were set
// for, and a call begins and ends on one thread.
unsafe impl Send for Messages {}

impl Messages {
    fn new() -> Box<Messages> {
        // SAFETY: integers and pointers only: zero is valid for all.
        Box::new(unsafe { mem::zeroed() })
    }

    /// Message `index` is the header of what is undone and `bytes`.
    fn set(&mut self, index: usize, bytes: *mut u8, len: usize) {
        self.undone[index] = Undone::default();
        let undone = (&raw mut self.undone[index]).cast();
        self.parts[index] = [
            libc::iovec { iov_base: undone, iov_len: size_of::<Undone>() },
            libc::iovec { iov_base: bytes.cast(), iov_len: len },
        ];
        self.headers[index].msg_hdr.msg_iov = self.parts[index].as_mut_ptr();
        self.headers[index].msg_hdr.msg_iovlen = 2;
    }
}

impl PacketQueue {
    pub(crate) fn new(fd: OwnedFd) -> PacketQueue {
        let fd = Arc::new(fd);
        PacketQueue {
            messages: Messages::new(),
            tally: Arc::default(),
            statistics: Arc::new(Statistics { fd: Arc::downgrade(&fd), drops: AtomicU64::new(0) }),
            fd,
        }
    }

    /// The kernel's socket, for a successor.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Receives into the chunks; how many were filled.
    fn receive(&mut self, chunks: &mut Batch<'static>) -> usize {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let bytes = chunk.bytes_mut();
            self.messages.set(index, bytes.as_mut_ptr(), bytes.len());
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (headers, count) = (self.messages.headers.as_mut_ptr(), chunks.len() as u32);
        // SAFETY: `count` messages were set to memory that lives through the
        // call: frames that we own, and headers in the same box.
        let received = unsafe {
            libc::recvmmsg(self.fd.as_raw_fd(), headers, count, flags as _, ptr::null_mut())
        };
        usize::try_from(received).unwrap_or(0)
    }

    /// The frame that a message was received into; None if it is to be
    /// dropped.
    fn finish(&self, index: usize, frame: &mut Frame<'static>) -> Option<()> {
        let undone = self.messages.undone[index];
        let len =
            (self.messages.headers[index].msg_len as usize).checked_sub(size_of::<Undone>())?;
        // With MSG_TRUNC the kernel reports the whole length, received or not.
        // Datagrams that GRO joined are not one packet; TCP segments are.
        let one_packet = matches!(undone.gso_type & !GSO_ECN, GSO_NONE | GSO_TCPV4 | GSO_TCPV6);
        if len > frame.len() || !one_packet {
            self.tally.rx_too_long.add(1);
            return None;
        }
        frame.truncate(len);
        if undone.flags & NEEDS_CHECKSUM != 0 {
            complete_checksum(
                frame.bytes_mut(),
                undone.checksum_start.into(),
                undone.checksum_offset.into(),
            )?;
        }
        Some(())
    }

    /// Sends the first frames; how many were taken.
    fn send(&mut self, batch: &mut Batch<'static>) -> io::Result<usize> {
        for (index, frame) in batch.iter_mut().enumerate() {
            let bytes = frame.bytes_mut();
            self.messages.set(index, bytes.as_mut_ptr(), bytes.len());
        }
        let (headers, count) = (self.messages.headers.as_mut_ptr(), batch.len() as u32);
        // SAFETY: as in `receive`.
        let sent =
            unsafe { libc::sendmmsg(self.fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn count_sent(&self, frame: &Frame) {
        self.tally.transmitted.add(1);
        self.tally.transmitted_bytes.add(frame.len() as u64);
    }
}

/// Does what a sender left to hardware: the field holds the sum over the
/// pseudo header, the rest of the packet is added to it.
fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let checksum = wire::checksum::finish(wire::checksum::sum(frame.get(start..)?));
    // In UDP zero means "none", and all ones is the same number.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    frame.get_mut(start + offset..start + offset + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

impl Queue for PacketQueue {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        let mut frames = Batch::new();
        while frames.len() < batch.remaining_capacity() {
            let Some(chunk) = pool.take() else { break };
            let end = chunk.len();
            frames.push(Frame::new(chunk, HEADROOM_BYTES, end));
        }
        let received = self.receive(&mut frames);
        for (index, mut frame) in frames.into_iter().enumerate() {
            if index >= received || self.finish(index, &mut frame).is_none() {
                pool.give_frame(frame);
                continue;
            }
            self.tally.received.add(1);
            self.tally.received_bytes.add(frame.len() as u64);
            batch.push(frame);
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch<'static>) {
        while !batch.is_empty() {
            match self.send(batch) {
                Ok(sent) => batch.drain(..sent).for_each(|frame| {
                    self.count_sent(&frame);
                    pool.give_frame(frame);
                }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => return,
                Err(_) => {
                    // The first one cannot be sent (longer than the MTU, or
                    // the link is down); those behind it may.
                    self.tally.tx_invalid.add(1);
                    batch.drain(..1).for_each(|frame| pool.give_frame(frame));
                }
            }
        }
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }

    fn meter(&self) -> Meter {
        let statistics: Arc<dyn KernelCounters> = self.statistics.clone();
        Meter::new(&self.tally, Some(statistics))
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// The kernel forgets its count when asked, so that it is summed here.
struct Statistics {
    fd: Weak<OwnedFd>,
    drops: AtomicU64,
}

impl KernelCounters for Statistics {
    fn read(&self, counters: &mut QueueCounters) {
        if let Some(Ok(new)) = self.fd.upgrade().map(|fd| socket::take_drops(&fd)) {
            self.drops.fetch_add(new.into(), Relaxed);
        }
        counters.rx_dropped += self.drops.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_left_to_hardware_is_completed() {
        // A UDP datagram over IPv4: the field holds the folded sum over the
        // pseudo header, as the kernel leaves it.
        let (source, destination) = ([192, 0, 2, 1], [203, 0, 113, 10]);
        let mut datagram = [0x30, 0x39, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
        let pseudo = wire::checksum::pseudo_header(&source, &destination, 17, datagram.len());
        datagram[6..8].copy_from_slice(&wire::checksum::fold(pseudo).to_be_bytes());
        let mut frame = [vec![0xee; 34], datagram.to_vec()].concat();
        complete_checksum(&mut frame, 34, 6).unwrap();
        let whole = pseudo + wire::checksum::sum(&frame[34..]);
        assert_eq!(
            wire::checksum::finish(whole),
            0,
            "the receiver's sum over all must come to zero"
        );
    }

    #[test]
    fn a_checksum_outside_the_frame_drops_it() {
        assert!(complete_checksum(&mut [0; 40], 50, 0).is_none());
        assert!(complete_checksum(&mut [0; 40], 34, 6).is_none());
    }
}
