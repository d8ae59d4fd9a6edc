//! Sends frames on an interface, whichever driver owns its queues: a packet socket that
//! receives nothing.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket on one interface.
#[derive(Debug)]
pub struct LinkSender {
    socket: OwnedFd,
}

impl LinkSender {
    /// For the interface with that number of the kernel's. Needs CAP_NET_RAW.
    pub fn open(interface_index: u32) -> io::Result<LinkSender> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Protocol 0: it receives nothing.
        // SAFETY: a call without pointers; the result is checked.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: integers and an array of them: zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface_index as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives through the call and is as long as said.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(LinkSender { socket })
    }

    /// Sends a frame, from its Ethernet header on. An error: the link is down or
    /// gone, or its queue is full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let (fd, bytes) = (self.socket.as_raw_fd(), frame.as_ptr().cast());
        // SAFETY: the bytes live through the call and are as many as said.
        match unsafe { libc::send(fd, bytes, frame.len(), 0) } {
            sent if sent < 0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}
