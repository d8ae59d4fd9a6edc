//! Marks of traced packets: load balancers recognise those signed by `guideway trace` in Go,
//! and those made independently by vectors/make.py.

use std::net::IpAddr;

use datapath::Secret;
use datapath::trace::{MARK_BYTES, Mark, sign};
use serde_json::Value;
use wire::{Family, FlowKey, Protocol};

fn cases() -> Vec<Value> {
    let path = format!("{}/../vectors/trace.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!cases.is_empty(), "an empty list holds nothing");
    cases
}

fn text<'v>(case: &'v Value, key: &str) -> &'v str {
    case[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {case}"))
}

fn number<N: TryFrom<u64>>(case: &Value, key: &str) -> N {
    let number = case[key].as_u64().and_then(|number| number.try_into().ok());
    number.unwrap_or_else(|| panic!("no number `{key}` in {case}"))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn flow_key(case: &Value) -> FlowKey {
    let source: IpAddr = text(case, "source").parse().unwrap();
    FlowKey {
        family: if source.is_ipv4() { Family::V4 } else { Family::V6 },
        protocol: Protocol(number(case, "protocol")),
        source: bits(source),
        destination: bits(text(case, "destination").parse().unwrap()),
        source_port: number(case, "source_port"),
        destination_port: number(case, "destination_port"),
    }
}

fn signed(case: &Value) -> [u8; MARK_BYTES] {
    let secret = Secret::from_file_content(text(case, "secret").as_bytes()).unwrap();
    let mark = Mark {
        receiver: text(case, "receiver").parse().unwrap(),
        port: number(case, "port"),
        nonce: u64::from_str_radix(text(case, "nonce"), 16).unwrap(),
    };
    sign(&secret.trace_key().unwrap(), &mark, number(case, "unix_ms"), &flow_key(case))
}

#[test]
fn marks_are_the_same_in_every_language() {
    for case in cases() {
        let hex: String = signed(&case).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, text(&case, "mark"), "{case}");
    }
}
