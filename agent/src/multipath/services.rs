//! The program's table of these services.

use std::net::SocketAddr;

use aya::maps::{HashMap, MapData};
use ebpf::with_causes;

use crate::addresses::mapped;

/// Of `struct service` there: address, port, zero.
const KEY_BYTES: usize = 20;

/// The table.
pub struct Services(HashMap<MapData, [u8; KEY_BYTES], u32>);

impl Services {
    /// Of the program's table.
    pub fn new(table: HashMap<MapData, [u8; KEY_BYTES], u32>) -> Services {
        Services(table)
    }

    /// Enters services into an empty table.
    pub fn set(&mut self, services: &[SocketAddr]) -> Result<(), String> {
        for service in services {
            let entered = self.0.insert(key(*service), 1, 0);
            entered.map_err(|error| {
                format!("cannot add service {service}: {}", with_causes(&error))
            })?;
        }
        Ok(())
    }
}

fn key(service: SocketAddr) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&mapped(service.ip()));
    key[16..18].copy_from_slice(&service.port().to_be_bytes());
    key
}
