//! The drivers: ways to get frames from an interface, or from elsewhere. Each has a folder, and
//! one line below.
//!
//! A driver describes as a value what it can do ([`Driver`]).

use crate::driver::Driver;
use crate::interface::InterfaceError;

macro_rules! drivers {
    ($($module:ident)*) => {
        $(pub mod $module;)*

        /// Every driver.
        pub static ALL: &[&Driver] = &[$(&$module::DRIVER,)*];
    };
}

drivers! {
    af_xdp
    af_packet
    memory
    pcap
}

/// The driver that suits an interface, and why.
///
/// # Errors
/// If there is no such interface.
pub fn suiting(interface: &str) -> Result<(&'static Driver, String), InterfaceError> {
    // Of one that comes in a moment nothing is known.
    ebpf::index_of(interface)?;
    if let Some(name) = ebpf::losing_offloads(interface) {
        let reason = format!("auto: {name} would lose its offloads with af_xdp");
        return Ok((&af_packet::DRIVER, reason));
    }
    Ok(match af_xdp::taking_nothing(interface) {
        Some(name) => (&af_packet::DRIVER, format!("auto: {name} gives af_xdp no packets")),
        None => (&af_xdp::DRIVER, "auto: nothing is lost by it here".to_owned()),
    })
}

/// The driver of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Driver> {
    ALL.iter().copied().find(|driver| driver.name == name)
}

/// Where none is named.
impl Default for &'static Driver {
    fn default() -> &'static Driver {
        &af_xdp::DRIVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{DeviceConfig, QueueOptions};
    use crate::error::OpenError;

    #[test]
    fn a_driver_is_found_by_its_name_and_by_no_other() {
        for &driver in ALL {
            assert_eq!(named(driver.name), Some(driver));
            assert_eq!(ALL.iter().filter(|other| other.name == driver.name).count(), 1);
        }
        assert_eq!(named("no_such_driver"), None);
        assert!(suiting("no_interface").is_err(), "it may be any that comes");
        assert_eq!(<&Driver>::default(), &af_xdp::DRIVER);
    }

    #[test]
    fn a_driver_without_interfaces_of_the_kernel_opens_none() {
        let without: Vec<&Driver> =
            ALL.iter().copied().filter(|driver| !driver.abilities.kernel_interface).collect();
        assert_eq!(without, [&memory::DRIVER, &pcap::DRIVER]);
        for driver in without {
            let config = DeviceConfig { interface: "lo".into(), driver, ..DeviceConfig::default() };
            let error = crate::open(&[config], &QueueOptions::default()).err().unwrap();
            assert!(matches!(error, OpenError::NotOfTheKernel { .. }), "{error}");
        }
    }

    #[test]
    fn every_driver_maps_the_memory_that_its_queues_keep_busy() {
        for &driver in ALL {
            let chunks = (driver.chunks)(&QueueOptions { ring_entries: 8, ..Default::default() });
            assert_eq!((driver.pool)(chunks).unwrap().free(), chunks, "{driver}");
        }
    }
}
