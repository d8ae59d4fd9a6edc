//! Interfaces of this network namespace, by system calls: sysfs shows the namespace in which it
//! was mounted, not the caller's.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// No interface has that name.
#[derive(Debug, thiserror::Error)]
#[error("there is no interface {name}; there are: {}", present.join(", "))]
pub struct NoInterface {
    /// The name.
    pub name: String,
    /// The names that exist.
    pub present: Vec<String>,
}

/// The kernel's number for an interface.
pub fn index_of(name: &str) -> Result<u32, NoInterface> {
    let missing = || NoInterface { name: name.to_string(), present: names() };
    let c_name = CString::new(name).map_err(|_| missing())?;
    // SAFETY: the pointer is to a C string that lives through the call.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}

/// Bytes of an IP packet that an interface carries.
pub fn mtu_of(name: &str) -> io::Result<u32> {
    let mut request = request(name);
    // SAFETY: the request has no pointers.
    unsafe { ask(libc::SIOCGIFMTU, &mut request) }?;
    // SAFETY: the call has filled this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// Which received packets are merged into larger ones before a program sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveOffload {
    /// By the device: large receive offload.
    pub lro: bool,
    /// By the kernel: generic receive offload.
    pub gro: bool,
}

/// What an interface's device merges.
pub fn receive_offload(name: &str) -> io::Result<ReceiveOffload> {
    let value_of = |command| {
        let mut value = Value { command, value: 0 };
        // SAFETY: both commands fill this structure.
        unsafe { ethtool(name, &mut value) }.map(|()| value.value)
    };
    let lro = value_of(ETHTOOL_GFLAGS)? & ETH_FLAG_LRO != 0;
    Ok(ReceiveOffload { lro, gro: value_of(ETHTOOL_GGRO)? != 0 })
}

/// Drivers whose interfaces lose offloads by a program at XDP: segments are no longer joined
/// there, and each is summed by the processor; or they come joined, and are too long for it;
/// and those whose sender leaves their checksums to a device arrive without. The kernel's own
/// come last, by the names that ethtool has for them.
const LOSING_OFFLOADS: [&str; 6] =
    ["veth", "virtio_net", "802.1Q VLAN Support", "bridge", "macvlan", "team"];

/// The name of an interface's driver, if it is one of these.
#[must_use]
pub fn losing_offloads(name: &str) -> Option<String> {
    driver_of(name).ok().filter(|driver| LOSING_OFFLOADS.contains(&driver.as_str()))
}

/// The name of an interface's driver, as `ethtool -i` prints it.
pub fn driver_of(name: &str) -> io::Result<String> {
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], others: [0; 160] };
    // SAFETY: the command fills this structure.
    unsafe { ethtool(name, &mut info) }?;
    let driver = info.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(driver).into_owned())
}

// Of linux/ethtool.h, which libc lacks.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// struct ethtool_value.
#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

/// struct ethtool_drvinfo.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    others: [u8; 160],
}

/// Has one of ethtool's commands answered, which the structure begins with.
///
/// # Safety
/// The structure must be that of its command.
unsafe fn ethtool<T>(name: &str, answer: &mut T) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = (&raw mut *answer).cast();
    // SAFETY: the pointer in the request is to a structure that lives through the call, and
    // that is the command's, as the caller promises.
    unsafe { ask(libc::SIOCETHTOOL, &mut request) }
}

/// A request about an interface.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: all zeros are a value of this C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let (name, room) = (name.as_bytes(), request.ifr_name.len() - 1);
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request
}

/// netdevice(7).
///
/// # Safety
/// A pointer in the request must be to what the command takes.
unsafe fn ask(command: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: a call without pointers; the descriptor is new and ours alone.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the kernel reads and writes the structure, which lives through the call;
    // what it points to the caller promises.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command as _, &raw mut *request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The names of all interfaces, in the kernel's order.
fn names() -> Vec<String> {
    // SAFETY: a call without arguments; null on failure.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Vec::new();
    }
    let mut names = Vec::new();
    let mut entry = list;
    // SAFETY: the list is an array that ends in an entry without a name;
    // names are C strings that live until it is freed.
    while let Some(name) = unsafe { entry.as_ref() }.filter(|entry| !entry.if_name.is_null()) {
        // SAFETY: as above.
        names.push(unsafe { CStr::from_ptr(name.if_name) }.to_string_lossy().into_owned());
        entry = entry.wrapping_add(1);
    }
    // SAFETY: the list came from if_nameindex and is freed once.
    unsafe { libc::if_freenameindex(list) };
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_a_number() {
        assert_ne!(index_of("lo").unwrap(), 0);
        assert!(names().contains(&"lo".to_string()));
    }

    #[test]
    fn an_interface_has_an_mtu() {
        assert!(mtu_of("lo").unwrap() >= 1280);
        assert!(mtu_of("nonesuch0").is_err());
        assert!(mtu_of("an-overlong-interface-name").is_err());
    }

    #[test]
    fn the_loopback_interface_says_what_it_merges() {
        assert!(!receive_offload("lo").unwrap().lro);
        assert!(receive_offload("nonesuch0").is_err());
    }

    #[test]
    fn a_driver_has_a_name() {
        assert!(driver_of("nonesuch0").is_err());
        assert_eq!(size_of::<DriverInfo>(), 196); // of linux/ethtool.h
    }

    #[test]
    fn a_missing_interface_is_answered_with_those_there_are() {
        let error = index_of("nonesuch0").unwrap_err().to_string();
        assert!(error.contains("nonesuch0") && error.contains("lo"), "{error}");
        assert!(index_of("an-overlong-interface-name").is_err());
        assert!(index_of("nul\0byte").is_err());
    }
}
