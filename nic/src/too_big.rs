//! A filter for raw ICMP sockets: only messages that report an MTU pass, so that a flood of
//! others takes none of the buffer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use wire::Family;

/// Instructions of classic BPF, which a raw socket runs on each packet: over
/// IPv4 from the IP header on, over IPv6 from the ICMPv6 header on.
const LOAD_HEADER_BYTES: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const LOAD_HALF_BEHIND: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Type 3, code 4: "fragmentation needed".
const FRAGMENTATION_NEEDED: u32 = 0x0304;
/// Type 2: "packet too big".
const PACKET_TOO_BIG: u32 = 2;

/// From now on the socket gets only what [`wire::icmp::reported_mtu`] reads.
pub fn attach(socket: BorrowedFd<'_>, family: Family) -> io::Result<()> {
    let (all, nothing) = (step(RETURN, u32::MAX, (0, 0)), step(RETURN, 0, (0, 0)));
    match family {
        Family::V4 => run(
            socket,
            &mut [
                step(LOAD_HEADER_BYTES, 0, (0, 0)),
                step(LOAD_HALF_BEHIND, 0, (0, 0)),
                step(JUMP_IF_EQUAL, FRAGMENTATION_NEEDED, (0, 1)),
                all,
                nothing,
            ],
        ),
        Family::V6 => run(
            socket,
            &mut [
                step(LOAD_BYTE, 0, (0, 0)),
                step(JUMP_IF_EQUAL, PACKET_TOO_BIG, (0, 1)),
                all,
                nothing,
            ],
        ),
    }
}

/// An instruction; `jumps` is how many to leave out if true, and if false.
fn step(code: u32, k: u32, jumps: (u8, u8)) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jumps.0, jf: jumps.1, k }
}

fn run(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
