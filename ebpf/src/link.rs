//! A BPF link, which keeps a program attached to an interface.
//!
//! A link is a descriptor. The program stays attached while any process holds it. So a
//! successor that gets a copy continues without a gap, and replaces its predecessor's program
//! by its own in one step. When the last copy is closed, however its process ended, the program
//! is detached.
//!
//! A *pinned* link has a name in the BPF file system. The name counts as a copy: the program
//! stays attached while no process has one.
//!
//! We make the system calls ourselves, because the BPF library does not give up the descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::util::KernelVersion;

// Of linux/bpf.h, which libc lacks.
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const BPF_F_BEFORE: u32 = 1 << 3;

/// Where a program may hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP, with the flags that choose the mode (linux/if_link.h).
    Xdp(u32),
    /// Traffic control, received frames (Linux 6.6).
    TcIngress,
    /// The same, before the programs that are there.
    TcIngressFirst,
    /// Traffic control, frames that are sent (Linux 6.6).
    TcEgress,
}

/// A program on an interface, until the last copy is dropped.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// The beginning of union bpf_attr for BPF_LINK_CREATE.
#[repr(C)]
struct Create {
    program: u32,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
}

/// The same for BPF_LINK_UPDATE.
#[repr(C)]
struct Update {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// The same for BPF_OBJ_PIN and BPF_OBJ_GET.
#[repr(C)]
struct Named {
    path: u64,
    object: u32,
    flags: u32,
}

/// The same for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct GetInfo {
    object: u32,
    info_bytes: u32,
    info: u64,
}

/// The beginning of struct bpf_link_info, of a link of XDP or traffic control.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    interface_index: u32,
    pad_behind: u32,
}

impl Link {
    /// Attaches a program.
    pub fn create(program: BorrowedFd, interface_index: u32, hook: Hook) -> io::Result<Link> {
        let (attach_type, flags) = match hook {
            Hook::Xdp(flags) => (BPF_XDP, flags),
            Hook::TcIngress => (BPF_TCX_INGRESS, 0),
            Hook::TcIngressFirst => (BPF_TCX_INGRESS, BPF_F_BEFORE),
            Hook::TcEgress => (BPF_TCX_EGRESS, 0),
        };
        let program = program.as_raw_fd() as u32;
        let mut create = Create { program, interface_index, attach_type, flags };
        // SAFETY: the structure begins the command's, and the kernel takes
        // what is missing of that for zero.
        let fd = unsafe { bpf(BPF_LINK_CREATE, &mut create) }?;
        // SAFETY: the descriptor is new and ours alone.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The link that a predecessor handed over.
    pub fn inherit(link: OwnedFd) -> Link {
        Link(link)
    }

    /// Puts another program in the place of the one that is attached: each
    /// frame meets the one or the other.
    pub fn replace(&self, program: BorrowedFd) -> io::Result<()> {
        let (link, program) = (self.0.as_raw_fd() as u32, program.as_raw_fd() as u32);
        let mut update = Update { link, program, flags: 0, old_program: 0 };
        // SAFETY: as in `create`.
        unsafe { bpf(BPF_LINK_UPDATE, &mut update) }.map(drop)
    }

    /// Takes the program off at once; when the last descriptor and name are gone the kernel
    /// does it a little later.
    pub fn detach(&self) -> io::Result<()> {
        let mut link = self.0.as_raw_fd() as u32;
        // SAFETY: as in `create`.
        unsafe { bpf(BPF_LINK_DETACH, &mut link) }.map(drop)
    }

    /// Gives the link a name, in a directory of a BPF file system.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let object = self.0.as_raw_fd() as u32;
        let mut named = Named { path: path.as_ptr() as u64, object, flags: 0 };
        // SAFETY: as in `create`; the path is a C string that outlives the call.
        unsafe { bpf(BPF_OBJ_PIN, &mut named) }.map(drop)
    }

    /// The link of that name.
    pub fn pinned(path: &Path) -> io::Result<Link> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut named = Named { path: path.as_ptr() as u64, object: 0, flags: 0 };
        // SAFETY: as in `pin`.
        let fd = unsafe { bpf(BPF_OBJ_GET, &mut named) }?;
        // SAFETY: the descriptor is new and ours alone.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The interface of a link; 0: it is gone.
    pub fn interface_index(&self) -> io::Result<u32> {
        let mut info = LinkInfo::default();
        let mut get = GetInfo {
            object: self.0.as_raw_fd() as u32,
            info_bytes: size_of::<LinkInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        // SAFETY: as in `create`; the kernel writes as many bytes as the
        // structure has, which outlives the call.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut get) }?;
        Ok(info.interface_index)
    }

    /// The descriptor, for a successor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// True if this kernel has links of traffic control (Linux 6.6).
#[must_use]
pub fn has_tc_links() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

/// bpf(2).
///
/// # Safety
/// `attributes` must be the beginning of what the command takes.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the structure lives through the call and is as long as said;
    // what is in it the caller promises.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
