//! The program's table of these services.

use std::net::SocketAddr;

use aya::maps::{HashMap, MapData};
use ebpf::{Record, with_causes};

use crate::records::{Service, mapped};

/// The table.
pub struct Services(HashMap<MapData, Record<Service>, u32>);

impl Services {
    /// Of the program's table.
    pub fn new(table: HashMap<MapData, Record<Service>, u32>) -> Services {
        Services(table)
    }

    /// Enters services into an empty table.
    pub fn set(&mut self, services: &[SocketAddr]) -> Result<(), String> {
        for service in services {
            let (address, port) = (mapped(service.ip()), service.port().into());
            let entered = self.0.insert(Record(Service { address, port, zero: 0 }), 1, 0);
            entered.map_err(|error| {
                format!("cannot add service {service}: {}", with_causes(&error))
            })?;
        }
        Ok(())
    }
}
