//! QUIC connection ids of a service.

use std::collections::BTreeMap;

use super::{PlanError, refuse};
use crate::ids::BackendId;
use crate::proto;
use crate::quic_lb::{BYTES_MAX, CONFIG_IDS, Config, NONCE_BYTES_MIN, QuicLb, SERVER_ID_BYTES};

/// The connection ids of the service at `path`, whose group has these members.
pub(super) fn quic_lb(
    path: &str,
    message: &proto::QuicLb,
    members: &[(&proto::Member, BackendId)],
) -> Result<QuicLb, PlanError> {
    let path = format!("{path}.quic_lb");
    if message.configs.is_empty() {
        return refuse(format!("{path}.configs"), "is missing");
    }
    let mut configs = BTreeMap::new();
    for (at, given) in message.configs.iter().enumerate() {
        let path = format!("{path}.configs[{at}]");
        let id = given.id as usize;
        if id >= CONFIG_IDS {
            let problem = format!("{id} is not within 0 to {}", CONFIG_IDS - 1);
            return refuse(format!("{path}.id"), problem);
        }
        if configs.insert(id, config(&path, given)?).is_some() {
            return refuse(format!("{path}.id"), format!("{id} is there twice"));
        }
    }
    let servers = servers(&path, message, members)?;
    match QuicLb::new(configs, &servers) {
        Some(quic_lb) => Ok(quic_lb),
        None => refuse(
            format!("{path}.servers"),
            "two do not differ in the bytes that connection ids have: give more server_id_bytes",
        ),
    }
}

fn config(path: &str, given: &proto::QuicLbConfig) -> Result<Config, PlanError> {
    let (server_id_bytes, nonce_bytes) = (given.server_id_bytes, given.nonce_bytes);
    if !SERVER_ID_BYTES.contains(&server_id_bytes) {
        let (min, max) = SERVER_ID_BYTES.into_inner();
        let problem = format!("{server_id_bytes} is not within {min} to {max}");
        return refuse(format!("{path}.server_id_bytes"), problem);
    }
    let nonce_bytes_max = BYTES_MAX - server_id_bytes;
    if !(NONCE_BYTES_MIN..=nonce_bytes_max).contains(&nonce_bytes) {
        let problem = format!(
            "{nonce_bytes} is not within {NONCE_BYTES_MIN} to {nonce_bytes_max}, beside \
             {server_id_bytes} bytes of server id"
        );
        return refuse(format!("{path}.nonce_bytes"), problem);
    }
    Ok(Config::new(given.encrypted, server_id_bytes as u8, nonce_bytes as u8))
}

/// Each server's id and backend.
fn servers(
    path: &str,
    message: &proto::QuicLb,
    members: &[(&proto::Member, BackendId)],
) -> Result<Vec<(u64, BackendId)>, PlanError> {
    let mut by_name: BTreeMap<&str, BackendId> =
        members.iter().map(|(member, id)| (member.backend.as_str(), *id)).collect();
    let server = |(at, server): (usize, &proto::QuicServer)| {
        let path = format!("{path}.servers[{at}]");
        let Some(backend) = by_name.remove(server.backend.as_str()) else {
            let problem =
                format!("`{}` is no member of the service's group, or there twice", server.backend);
            return refuse(format!("{path}.backend"), problem);
        };
        let is_hex = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(&server.server_id, 16) {
            Ok(id) if is_hex(&server.server_id) => Ok((id, backend)),
            _ => refuse(
                format!("{path}.server_id"),
                format!("`{}` is not 16 hexadecimal digits", server.server_id),
            ),
        }
    };
    message.servers.iter().enumerate().map(server).collect()
}
