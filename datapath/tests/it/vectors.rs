//! The vectors that must never change: the flow hash, checksums and route options, computed
//! independently by vectors/make.py.

use std::net::IpAddr;

use datapath::multipath::{MultipathKeys, bucket, token};
use datapath::{BucketHash, ByFlow, ConnectionIdKeys, FlowHash, Secret};
use plan::Affinity;

use serde_json::{Value, json};
use wire::tcp_options::Version;
use wire::tunnel::geneve;
use wire::tunnel::multipath_option::MultipathOption;
use wire::tunnel::route_option::{Malformed, RouteOption};
use wire::{Family, FlowKey, Protocol, checksum, ip};

fn read(name: &str) -> Value {
    let path = format!("{}/../vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    let list = value.as_array().expect("a list");
    assert!(!list.is_empty(), "an empty list holds nothing");
    list
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

fn number(value: &Value, key: &str) -> u16 {
    value[key]
        .as_u64()
        .and_then(|number| number.try_into().ok())
        .unwrap_or_else(|| panic!("no number `{key}`"))
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn word(value: &Value, key: &str) -> u16 {
    u16::from_str_radix(text(value, key), 16).unwrap()
}

#[test]
fn flow_hashes_are_the_same_forever() {
    for case in list(&read("flow_hash.json")) {
        let secret = secret(case);
        assert_eq!(secret.key_id(), text(case, "key_id"));
        let hash = FlowHash::new(&secret);
        for flow in list(&case["flows"]) {
            let key = flow_key(flow);
            assert_eq!(format!("{:016x}", hash.flow(&key)), text(flow, "flow"), "{flow}");
            assert_eq!(format!("{:016x}", hash.client(&key)), text(flow, "client"), "{flow}");
        }
    }
}

#[test]
fn bucket_hashes_are_the_same_forever() {
    let of = |affinity| {
        let message = json!({
            "generation": "1",
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "b", "address": "10.1.0.1"}],
            "groups": [{"name": "g", "members": [
                {"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"},
            ]}],
            "services": [{
                "name": "web",
                "vips": [{"address": "203.0.113.10"}],
                "group": "g",
                "affinity": affinity,
                "mode": "MODE_STATELESS",
                "encap": "ENCAP_GENEVE",
                "bucketMap": {"generation": "1", "backends": ["b"], "byBucket": vec![0; 256]},
            }],
        });
        plan::Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap()
    };
    let (by_flow, by_client) = (of("AFFINITY_FLOW"), of("AFFINITY_CLIENT"));
    for case in list(&read("bucket_hash.json")) {
        let hash = FlowHash::new(&secret(case));
        let selector = |plan: &plan::Plan, key| {
            let service = plan.services().next().unwrap();
            format!("{:016x}", hash.selector(service, hash.flow(&key), || key))
        };
        for flow in list(&case["flows"]) {
            let key = flow_key(flow);
            assert_eq!(selector(&by_flow, key), text(flow, "flow"), "{flow}");
            assert_eq!(selector(&by_client, key), text(flow, "client"), "{flow}");
            let agents = BucketHash::from_key(bytes(text(case, "key")).try_into().unwrap());
            for (affinity, answer) in [(Affinity::Flow, "flow"), (Affinity::Client, "client")] {
                let hash = format!("{:016x}", agents.selector(affinity, &key));
                assert_eq!(hash, text(flow, answer), "an agent's, {flow}");
            }
        }
    }
}

#[test]
fn quic_connection_ids_are_the_same_forever() {
    let vectors = read("quic_lb.json");
    for case in list(&vectors["keys"]) {
        let key = secret(case).connection_id_key(number(case, "config") as u8);
        assert_eq!(key.as_slice(), bytes(text(case, "key")), "{case}");
    }
    for case in list(&vectors["connection_ids"]) {
        let keys = ConnectionIdKeys::new(&secret(case));
        let (server_id, nonce) = (text(case, "server_id"), text(case, "nonce"));
        let message = json!({
            "generation": "1",
            "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
            "backends": [{"name": "other", "address": "10.1.0.1"}, {"name": "b", "address": "10.1.0.2"}],
            "groups": [{"name": "g", "members": [
                {"backend": "b", "weight": 1, "state": "BACKEND_STATE_ACTIVE"},
                {"backend": "other", "weight": 1, "state": "BACKEND_STATE_ACTIVE"},
            ]}],
            "services": [{
                "name": "web",
                "vips": [{"address": "203.0.113.10"}],
                "group": "g",
                "mode": "MODE_STATELESS",
                "encap": "ENCAP_GENEVE",
                "bucketMap": {"generation": "1", "backends": ["b"], "byBucket": vec![0; 256]},
                "quicLb": {
                    "configs": [{
                        "id": case["config"],
                        "encrypted": case["encrypted"],
                        "serverIdBytes": server_id.len() / 2,
                        "nonceBytes": nonce.len() / 2,
                    }],
                    "servers": [
                        {"backend": "other", "serverId": "0123456789abcdef"},
                        {"backend": "b", "serverId": format!("{server_id:0<16}")},
                    ],
                },
            }],
        });
        let plan = plan::Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap();
        let quic_lb = plan.services().next().unwrap().quic_lb.as_ref().unwrap();
        let id = bytes(text(case, "connection_id"));
        let name = |bytes: &[u8]| {
            keys.backend(quic_lb, bytes).map(|id| plan.backend(id).unwrap().name.clone())
        };
        assert_eq!(name(&id), Ok("b".into()), "{case}");
        assert_eq!(name(&[id.as_slice(), &[7; 3]].concat()), Ok("b".into()), "{case}");
        assert_eq!(name(&id[..id.len() - 1]), Err(ByFlow::TooShort), "{case}");
        assert_eq!(name(&[&[0xe0], &id[1..]].concat()), Err(ByFlow::Unroutable), "{case}");
        let other = [&[id[0] ^ 0x20], &id[1..]].concat();
        if other[0] >> 5 != 7 {
            assert_eq!(name(&other), Err(ByFlow::UnknownConfig), "{case}");
        }
        let mut changed = id.clone();
        changed[1] ^= 1;
        assert_eq!(name(&changed), Err(ByFlow::UnknownServer), "{case}");
    }
}

#[test]
fn outer_identifications_are_the_same_forever() {
    for case in list(&read("outer_id.json")) {
        let hash = FlowHash::new(&secret(case));
        for answer in list(&case["ids"]) {
            let address =
                |key: &str| text(answer, key).parse::<std::net::Ipv4Addr>().unwrap().to_bits();
            let id = hash.outer_id(address("own"), address("target"));
            assert_eq!(id, word(answer, "id"), "{answer}");
        }
    }
}

#[test]
fn route_options_are_the_same_forever() {
    let vectors = read("route_option.json");
    for case in list(&vectors["options"]) {
        let bytes = bytes(text(case, "option"));
        let addresses = case["addresses"].as_array().expect("a list");
        let address = |text: &Value| -> IpAddr { text.as_str().unwrap().parse().unwrap() };
        let option = RouteOption {
            returns: case["returns"].as_bool().unwrap(),
            hop_limit: number(case, "hop_limit") as u8,
            bucket: (!case["bucket"].is_null()).then(|| number(case, "bucket")),
            generation: case["generation"].as_u64().unwrap() as u32,
            addresses: addresses.iter().map(address).collect(),
        };
        assert_eq!(option.emit().as_slice(), bytes, "{case}");
        let read = geneve::options(&bytes).next().unwrap().expect("it is whole");
        assert_eq!(RouteOption::parse(&read), Some(Ok(option)), "{case}");
    }
    for case in list(&vectors["malformed"]) {
        let bytes = bytes(text(case, "option"));
        let read = geneve::options(&bytes).next().unwrap().expect("it is whole");
        assert_eq!(RouteOption::parse(&read), Some(Err(Malformed)), "{case}");
    }
}

fn secret(case: &Value) -> Secret {
    match case.get("secret") {
        Some(secret) => Secret::from_file_content(secret.as_str().unwrap().as_bytes()).unwrap(),
        None => Secret::derived(text(case, "cluster")),
    }
}

#[test]
fn white_space_at_the_end_of_a_secret_does_not_count() {
    for case in list(&read("flow_hash.json")).iter().filter_map(|case| case.get("secret")) {
        let plain = Secret::from_file_content(case.as_str().unwrap().as_bytes()).unwrap();
        let with_newline =
            Secret::from_file_content(format!("{}\r\n \t\n", case.as_str().unwrap()).as_bytes())
                .unwrap();
        assert_eq!(plain.key_id(), with_newline.key_id());
    }
}

fn flow_key(flow: &Value) -> FlowKey {
    let address = |key: &str| -> IpAddr { text(flow, key).parse().unwrap() };
    FlowKey {
        family: Family::of(address("destination")),
        protocol: Protocol(number(flow, "protocol") as u8),
        source: ip::address_bits(address("source")),
        destination: ip::address_bits(address("destination")),
        source_port: number(flow, "source_port"),
        destination_port: number(flow, "destination_port"),
    }
}

#[test]
fn checksums_are_those_of_rfc_1071() {
    for vector in list(&read("checksums.json")["full"]) {
        assert_eq!(
            checksum::finish(checksum::sum(&bytes(text(vector, "bytes")))),
            word(vector, "checksum"),
            "{vector}"
        );
    }
}

#[test]
fn updated_checksums_are_those_of_rfc_1624() {
    for vector in list(&read("checksums.json")["updates"]) {
        let updated =
            checksum::update(word(vector, "before"), word(vector, "old"), word(vector, "new"));
        assert_eq!(updated, word(vector, "after"), "{vector}");
    }
}

#[test]
fn multipath_keys_and_tokens_are_the_same_forever() {
    let word64 = |value: &Value, key: &str| u64::from_str_radix(text(value, key), 16).unwrap();
    for case in list(&read("multipath.json")["keys"]) {
        let initial_sequence = case["initial_sequence"].as_u64().unwrap() as u32;
        let version = match case["version"].as_u64().unwrap() {
            0 => Version::V0 { client_key: word64(case, "client_key") },
            _ => Version::V1,
        };
        let key = MultipathKeys::new(&secret(case)).key(&flow_key(case), version, initial_sequence);
        assert_eq!(format!("{key:016x}"), text(case, "key"), "{case}");
        let token = token(version, key);
        assert_eq!(format!("{token:08x}"), text(case, "token"), "{case}");
        for buckets in [256, 8192] {
            let wanted = number(case, &format!("bucket_of_{buckets}"));
            assert_eq!(bucket(token, buckets), u32::from(wanted), "{case}");
            // What the server's timestamps carry is enough for it.
            assert_eq!(bucket(token & 0x1fff, buckets), u32::from(wanted), "{case}");
        }
    }
}

#[test]
fn multipath_options_are_the_same_forever() {
    let vectors = read("multipath.json");
    for case in list(&vectors["options"]) {
        let option = bytes(text(case, "option"));
        let key = case["key"].as_str().map(|key| u64::from_str_radix(key, 16).unwrap());
        let address: IpAddr = text(case, "address").parse().unwrap();
        let said = MultipathOption { key, bucket: number(case, "bucket"), address };
        assert_eq!(said.emit().as_slice(), option, "{case}");
        let read = geneve::options(&option).next().flatten().unwrap();
        assert!(read.is_critical());
        assert_eq!(MultipathOption::parse(&read), Some(Ok(said)), "{case}");
        assert_eq!(RouteOption::parse(&read), None);
    }
    for case in list(&vectors["malformed"]) {
        let option = bytes(text(case, "option"));
        let read = geneve::options(&option).next().flatten().unwrap();
        assert_eq!(MultipathOption::parse(&read), Some(Err(Malformed)), "{case}");
    }
}
