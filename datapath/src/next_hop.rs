//! Where an encapsulated packet goes next.

use wire::MacAddress;

use crate::verdict::DeviceIndex;

/// A neighbour on one of our devices: the next hop to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The device to transmit on.
    pub device: DeviceIndex,
    /// Our address on it.
    pub source: MacAddress,
    /// The neighbour's address.
    pub destination: MacAddress,
    /// The longest IP packet that fits, in bytes.
    pub mtu: u16,
    /// It is the destination itself, and no gateway to it.
    pub is_destination: bool,
}
