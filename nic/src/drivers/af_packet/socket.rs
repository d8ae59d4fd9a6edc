//! Packet sockets: creates, guards and binds them, and joins them into a group.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::interface::Interface;

// Of linux/if_packet.h, which libc has in part.
const PACKET_STATISTICS: c_int = 6;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_FANOUT: c_int = 18;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const PACKET_FANOUT_HASH: u16 = 0;
const PACKET_FANOUT_QM: u16 = 5;
const PACKET_FANOUT_FLAG_UNIQUEID: u16 = 0x2000;

/// Room for frames until the worker takes them; the default holds some 250.
const BUFFER_BYTES: c_int = 32 << 20;

/// Sockets that share an interface's frames, each frame going to one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(c_int);

/// Opens a socket on an interface. `guard` sets its filter before the first
/// frame can come in.
pub(super) fn open(
    interface: &Interface,
    guard: impl FnOnce(BorrowedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    // Without a protocol it receives nothing until bind() names one.
    // SAFETY: a call without pointers; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    guard(fd.as_fd())?;
    set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    // Without CAP_NET_ADMIN the system's limits hold: more loss in bursts.
    let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_BYTES);
    let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER_BYTES);
    bind(&fd, interface.index)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, interface_index: u32) -> io::Result<()> {
    // SAFETY: integers and an array of them: zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface_index as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives through the call and is as long as said.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Adds a socket to the group of its interface, or begins one. Frames are
/// spread by the queue they came in on, or else by a hash over their flow.
pub(super) fn join(fd: &OwnedFd, group: Option<Group>, by_queue: bool) -> io::Result<Group> {
    let mode = if by_queue { PACKET_FANOUT_QM } else { PACKET_FANOUT_HASH };
    if let Some(Group(id)) = group {
        set_option(fd, libc::SOL_PACKET, PACKET_FANOUT, id | c_int::from(mode) << 16)?;
        return Ok(Group(id));
    }
    let begin = c_int::from(mode | PACKET_FANOUT_FLAG_UNIQUEID) << 16;
    set_option(fd, libc::SOL_PACKET, PACKET_FANOUT, begin)?;
    let answer: [u8; 4] = option(fd, PACKET_FANOUT)?;
    Ok(Group(c_int::from_ne_bytes(answer) & 0xffff))
}

/// Frames lost for want of room since the last call.
pub(super) fn take_drops(fd: &OwnedFd) -> io::Result<u32> {
    // struct tpacket_stats: packets, drops.
    let [_, _, _, _, d0, d1, d2, d3]: [u8; 8] = option(fd, PACKET_STATISTICS)?;
    Ok(u32::from_ne_bytes([d0, d1, d2, d3]))
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_option(fd: &OwnedFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value lives through the call and is as long as said.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })
}

fn option<const N: usize>(fd: &OwnedFd, name: c_int) -> io::Result<[u8; N]> {
    let mut value = [0; N];
    let mut len = N as libc::socklen_t;
    let (socket, pointer) = (fd.as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most `len` bytes, which the array has.
    check(unsafe { libc::getsockopt(socket, libc::SOL_PACKET, name, pointer, &raw mut len) })?;
    Ok(value)
}
