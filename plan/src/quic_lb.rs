//! QUIC connection ids that name backends (draft-ietf-quic-load-balancers-21): their layout,
//! and the server id of each backend. Contains no keys: they are derived from the cluster's
//! secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::BackendId;

/// How many configs there may be: the eighth value of the three bits that name one
/// says that a connection id names no server.
pub const CONFIG_IDS: usize = 7;
/// Bytes of a server id.
pub const SERVER_ID_BYTES: std::ops::RangeInclusive<u32> = 4..=8;
/// Bytes of a nonce at least.
pub const NONCE_BYTES_MIN: u32 = 4;
/// Bytes of both together, at most: QUIC's connection ids have 20, one of which says
/// which config.
pub const BYTES_MAX: u32 = 19;

/// A service's connection ids.
#[derive(Debug, Default)]
pub struct QuicLb {
    configs: [Option<Config>; CONFIG_IDS],
}

/// How connection ids of one config are laid out.
#[derive(Debug, Clone)]
pub struct Config {
    /// What follows the first byte is encrypted.
    pub encrypted: bool,
    /// Bytes of the server id.
    pub server_id_bytes: u8,
    /// Bytes of the nonce behind it.
    pub nonce_bytes: u8,
    servers: Arc<Servers>,
}

/// Backends by server id: open addressing in at least twice as many places. Server ids
/// are digests, so each is its own hash.
#[derive(Debug)]
struct Servers(Box<[Option<Server>]>);

#[derive(Debug, Clone, Copy)]
struct Server {
    id: u64,
    backend: BackendId,
}

impl QuicLb {
    /// With those configs, and the servers' ids in the highest bytes. None: two of
    /// them do not differ in the bytes that a config has.
    pub(crate) fn new(
        configs: impl IntoIterator<Item = (usize, Config)>,
        servers: &[(u64, BackendId)],
    ) -> Option<QuicLb> {
        let mut quic_lb = QuicLb::default();
        let mut tables: BTreeMap<u8, Arc<Servers>> = BTreeMap::new();
        for (id, mut config) in configs {
            let table = match tables.get(&config.server_id_bytes) {
                Some(table) => Arc::clone(table),
                None => Arc::new(Servers::new(servers, config.server_id_mask())?),
            };
            tables.insert(config.server_id_bytes, Arc::clone(&table));
            config.servers = table;
            quic_lb.configs[id] = Some(config);
        }
        Some(quic_lb)
    }

    /// The config of that id, 0 to 7.
    #[inline]
    #[must_use]
    pub fn config(&self, id: u8) -> Option<&Config> {
        self.configs.get(usize::from(id))?.as_ref()
    }
}

impl Config {
    /// One without servers.
    pub(crate) fn new(encrypted: bool, server_id_bytes: u8, nonce_bytes: u8) -> Config {
        let servers = Arc::new(Servers(Box::default()));
        Config { encrypted, server_id_bytes, nonce_bytes, servers }
    }

    /// Bytes of server id and nonce.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::from(self.server_id_bytes + self.nonce_bytes)
    }

    /// The backend whose server id is in the highest bytes of `bits`.
    #[inline]
    #[must_use]
    pub fn backend(&self, bits: u64) -> Option<BackendId> {
        self.servers.find(bits & self.server_id_mask())
    }

    fn server_id_mask(&self) -> u64 {
        u64::MAX << (64 - 8 * u32::from(self.server_id_bytes))
    }
}

impl Servers {
    fn new(servers: &[(u64, BackendId)], mask: u64) -> Option<Servers> {
        let size = (servers.len() * 2).next_power_of_two();
        let mut table = Servers(vec![None; size].into());
        for (id, backend) in servers {
            let id = id & mask;
            let place = table.place(id);
            if table.0[place].is_some() {
                return None;
            }
            table.0[place] = Some(Server { id, backend: *backend });
        }
        Some(table)
    }

    fn find(&self, id: u64) -> Option<BackendId> {
        self.0[self.place(id)].map(|server| server.backend)
    }

    /// Where that server is, or would be.
    fn place(&self, id: u64) -> usize {
        let mask = self.0.len() - 1;
        let mut at = (id >> 32) as usize & mask;
        while self.0[at].is_some_and(|server| server.id != id) {
            at = (at + 1) & mask;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_by_the_bytes_that_their_config_has() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state >> 29
        };
        let servers: Vec<(u64, BackendId)> =
            (1..=500).map(|index| (random(), BackendId(index))).collect();
        let configs = [(0, Config::new(false, 4, 4)), (3, Config::new(true, 8, 8))];
        let quic_lb = QuicLb::new(configs, &servers).unwrap();
        for (id, backend) in &servers {
            assert_eq!(quic_lb.config(0).unwrap().backend(id ^ 0xffff_ffff), Some(*backend));
            assert_eq!(quic_lb.config(3).unwrap().backend(*id), Some(*backend));
            assert_eq!(quic_lb.config(3).unwrap().backend(id ^ 1), None);
        }
        assert!(quic_lb.config(1).is_none());
        assert!(quic_lb.config(7).is_none());
    }

    #[test]
    fn without_servers_no_backend_is_found() {
        let quic_lb = QuicLb::new([(0, Config::new(false, 8, 8))], &[]).unwrap();
        assert_eq!(quic_lb.config(0).unwrap().backend(0), None);
    }

    #[test]
    fn servers_that_differ_behind_their_configs_bytes_are_refused() {
        let servers = [(1 << 32, BackendId(1)), (1 << 32 | 1, BackendId(2))];
        assert!(QuicLb::new([(0, Config::new(false, 5, 8))], &servers).is_none());
        assert!(QuicLb::new([(0, Config::new(false, 8, 8))], &servers).is_some());
    }
}
