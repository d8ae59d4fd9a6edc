//! Reads properties of a network interface from the kernel, by ioctl: sysfs shows the network
//! namespace in which it was mounted, not the caller's.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use ebpf::NoInterface;
use wire::MacAddress;

/// The kernel's command for `ethtool -l`; libc has none of these.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// An interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// Its hardware address.
    pub mac: MacAddress,
    /// The longest IP packet it sends.
    pub mtu: u32,
    /// Queues that it spreads received frames over.
    pub rx_queues: u32,
    /// Whether it is set up.
    pub up: bool,
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No interface of that name.
    #[error(transparent)]
    Missing(#[from] NoInterface),
    /// The kernel refused to answer.
    #[error("cannot read {what} of interface {name}: {error}")]
    Query {
        /// The interface.
        name: String,
        /// What was asked.
        what: &'static str,
        /// The system's reason.
        error: io::Error,
    },
}

impl Interface {
    /// Looks an interface up.
    pub fn find(name: &str) -> Result<Interface, InterfaceError> {
        let index = ebpf::index_of(name)?;
        Interface::query(name, index)
    }

    /// As many RX queues as it can be given.
    pub(crate) fn queues_max(name: &str) -> Result<u32, InterfaceError> {
        let channels = Request::new(name).and_then(|request| request.channels());
        let failed =
            |error| InterfaceError::Query { name: name.to_string(), what: "the queues", error };
        let channels = channels.map_err(failed)?;
        Ok((channels.rx_max + channels.combined_max).max(1))
    }

    fn query(name: &str, index: u32) -> Result<Interface, InterfaceError> {
        let failed =
            |what| move |error| InterfaceError::Query { name: name.to_string(), what, error };
        let request = Request::new(name).map_err(failed("anything"))?;
        let (mac, flags) = (
            request.mac().map_err(failed("the address"))?,
            request.flags().map_err(failed("the flags"))?,
        );
        let mtu = request.mtu().map_err(failed("the MTU"))?;
        let rx_queues = request.rx_queues().map_err(failed("the queues"))?;
        let up = flags & libc::IFF_UP != 0;
        Ok(Interface { name: name.to_string(), index, mac, mtu, rx_queues, up })
    }
}

/// The kernel's number of the calling thread's network namespace.
pub(crate) fn own_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// ioctl requests about one interface.
pub(crate) struct Request {
    socket: OwnedFd,
    template: libc::ifreq,
}

/// struct ethtool_channels.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    rx_max: u32,
    tx_max: u32,
    other_max: u32,
    combined_max: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

impl Request {
    pub(crate) fn new(name: &str) -> io::Result<Request> {
        // SAFETY: a call without pointers; the result is checked.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Ok(Request { socket, template: Request::template(name)? })
    }

    /// An ifreq with the name and nothing else.
    pub(crate) fn template(name: &str) -> io::Result<libc::ifreq> {
        // SAFETY: ifreq is integers and arrays of them: zero is valid.
        let mut template: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= template.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in template.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(template)
    }

    /// The same for this interface.
    pub(crate) fn ifreq(&self) -> libc::ifreq {
        self.template
    }

    /// # Safety
    /// `request` must be an ioctl that reads and writes an ifreq, and any
    /// pointer in it must be to what the ioctl expects.
    pub(crate) unsafe fn ioctl(
        &self,
        request: libc::c_ulong,
        mut ifreq: libc::ifreq,
    ) -> io::Result<libc::ifreq> {
        // SAFETY: the caller's promise; the ifreq lives through the call.
        if unsafe { libc::ioctl(self.socket.as_raw_fd(), request as _, &raw mut ifreq) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ifreq)
    }

    pub(crate) fn mac(&self) -> io::Result<MacAddress> {
        // SAFETY: SIOCGIFHWADDR fills an ifreq.
        let answer = unsafe { self.ioctl(libc::SIOCGIFHWADDR, self.template)? };
        // SAFETY: it fills this member; any bytes are valid in it.
        let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
        Ok(MacAddress(std::array::from_fn(|at| address.sa_data[at] as u8)))
    }

    pub(crate) fn mtu(&self) -> io::Result<u32> {
        // SAFETY: SIOCGIFMTU fills an ifreq.
        let answer = unsafe { self.ioctl(libc::SIOCGIFMTU, self.template)? };
        // SAFETY: it fills this member; any value is valid in it.
        Ok(unsafe { answer.ifr_ifru.ifru_mtu } as u32)
    }

    pub(crate) fn flags(&self) -> io::Result<libc::c_int> {
        // SAFETY: SIOCGIFFLAGS fills an ifreq.
        let answer = unsafe { self.ioctl(libc::SIOCGIFFLAGS, self.template)? };
        // SAFETY: it fills this member; any value is valid in it.
        Ok(libc::c_int::from(unsafe { answer.ifr_ifru.ifru_flags }))
    }

    /// As `ethtool -l` shows: queues that only receive plus those that do
    /// both. A driver without an answer has one.
    fn rx_queues(&self) -> io::Result<u32> {
        self.channels().map(|channels| (channels.rx + channels.combined).max(1))
    }

    /// All zero where the driver has no answer.
    fn channels(&self) -> io::Result<Channels> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut ifreq = self.template;
        ifreq.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: SIOCETHTOOL reads the command behind the pointer and fills
        // the structure that belongs to it, which lives through the call.
        match unsafe { self.ioctl(SIOCETHTOOL, ifreq) } {
            Ok(_) => Ok(channels),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Channels::default()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_what_it_always_is() {
        let lo = Interface::find("lo").unwrap();
        assert_eq!((lo.mac, lo.mtu, lo.rx_queues), (MacAddress([0; 6]), 65536, 1));
    }

    #[test]
    fn a_missing_interface_is_answered_with_those_there_are() {
        let error = Interface::find("nonesuch0").unwrap_err().to_string();
        assert!(error.contains("nonesuch0") && error.contains("lo"), "{error}");
        assert!(Interface::find("an-overlong-interface-name").is_err());
        assert!(Interface::find("nul\0byte").is_err());
    }
}
