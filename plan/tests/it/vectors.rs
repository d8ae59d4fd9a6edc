//! The vectors that must never change: Maglev tables and the order of matching, computed
//! independently by vectors/make.py.

use plan::select::maglev::{Candidate, Permutation, populate, selector};
use plan::{Found, Planner, proto};
use serde_json::Value;
use wire::{Family, FlowKey, Protocol, ip};

fn read(name: &str) -> Value {
    let path = format!("{}/../vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v Vec<Value> {
    let list = value[key].as_array().unwrap_or_else(|| panic!("no list `{key}`"));
    assert!(!list.is_empty(), "`{key}` is empty");
    list
}

fn number(value: &Value) -> u32 {
    value
        .as_u64()
        .and_then(|number| number.try_into().ok())
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

fn numbers(value: &Value, key: &str) -> Vec<u32> {
    list(value, key).iter().map(number).collect()
}

fn candidates(table: &Value) -> Vec<Candidate> {
    let candidate = |backend: &Value| Candidate {
        name: text(backend, "name").to_owned(),
        weight: number(&backend["weight"]),
    };
    list(table, "backends").iter().map(candidate).collect()
}

#[test]
fn permutations_follow_from_names() {
    for vector in list(&read("maglev.json"), "permutations") {
        let wanted =
            Permutation { offset: number(&vector["offset"]), skip: number(&vector["skip"]) };
        assert_eq!(
            Permutation::of(text(vector, "name"), number(&vector["size"])),
            wanted,
            "{vector}"
        );
    }
}

#[test]
fn table_1_of_the_paper() {
    let vector = &read("maglev.json")["table_1_of_the_paper"];
    for when in ["before", "after"] {
        let permutations: Vec<Permutation> = list(&vector[when], "permutations")
            .iter()
            .map(|pair| Permutation { offset: number(&pair[0]), skip: number(&pair[1]) })
            .collect();
        let entries =
            populate(&permutations, &vec![1; permutations.len()], number(&vector["size"]));
        assert_eq!(
            entries.iter().map(|entry| u32::from(*entry)).collect::<Vec<_>>(),
            numbers(&vector[when], "entries")
        );
    }
}

#[test]
fn tables_and_fingerprints_are_the_same_forever() {
    for vector in list(&read("maglev.json"), "tables") {
        let candidates = candidates(vector);
        let table = selector(&candidates, number(&vector["size"]));
        let entries: Vec<u32> = table.entries().iter().map(|entry| u32::from(*entry)).collect();
        match vector.get("entries") {
            Some(_) => assert_eq!(entries, numbers(vector, "entries"), "{vector}"),
            None => {
                let first = numbers(vector, "first_entries");
                let count = |of: usize| {
                    entries.iter().filter(|entry| **entry as usize == of).count() as u32
                };
                assert_eq!(entries[..first.len()], first);
                assert_eq!(
                    (0..candidates.len()).map(count).collect::<Vec<_>>(),
                    numbers(vector, "counts")
                );
            }
        }
        assert_eq!(
            format!("{:016x}", table.fingerprint()),
            text(vector, "fingerprint"),
            "{vector}"
        );
    }
}

#[test]
fn slots_follow_from_hashes() {
    for vector in list(&read("maglev.json"), "slots") {
        let one = [Candidate { name: "only".into(), weight: 1 }];
        let hash = u64::from_str_radix(text(vector, "hash"), 16).unwrap();
        assert_eq!(
            selector(&one, number(&vector["size"])).slot(hash),
            number(&vector["slot"]),
            "{vector}"
        );
    }
}

#[test]
fn packets_match_in_the_order_of_the_design() {
    let vectors = read("match_order.json");
    let message: proto::Plan = serde_json::from_value(vectors["plan"].clone()).unwrap();
    let plan = Planner::default().plan(message).unwrap();
    for vector in list(&vectors, "packets") {
        let found = match plan.vips.find(&flow_key(vector).target()) {
            Found::Service(matched) => plan.service_of(&matched).name.as_str(),
            Found::NoService { pass: false } => "drop",
            Found::NoService { pass: true } => "no service of these passes",
            Found::NotVip => "pass",
        };
        assert_eq!(found, text(vector, "found"), "{vector}");
    }
}

fn flow_key(vector: &Value) -> FlowKey {
    let destination = text(vector, "destination").parse().unwrap();
    FlowKey {
        family: Family::of(destination),
        protocol: match text(vector, "protocol") {
            "tcp" => Protocol::TCP,
            "udp" => Protocol::UDP,
            "esp" => Protocol(50),
            other => panic!("{other}"),
        },
        source: 1,
        destination: ip::address_bits(destination),
        source_port: 1,
        destination_port: number(&vector["port"]) as u16,
    }
}
