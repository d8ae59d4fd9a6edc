//! Checks with the programs' compiler that their structs equal those of records.rs.

use std::fmt::Write;
use std::fs;
use std::mem::{offset_of, size_of};

use super::every_compiler::compile;
use crate::records::*;

/// In C: that a struct has these fields where they are here, and no others. What is of
/// any length behind `packet` is none of them.
macro_rules! assertions {
    ($($name:literal: $record:ty { $($field:ident),* })*) => {{
        let mut text = String::new();
        $($(writeln!(
            text,
            "_Static_assert(offsetof(struct {name}, {field}) == {at} && sizeof(((struct {name} *)0)->{field}) == {bytes}, \"{name}.{field}\");",
            name = $name,
            field = stringify!($field),
            at = offset_of!($record, $field),
            bytes = size_of_field(|record: &$record| &record.$field),
        )
        .unwrap();)*
        writeln!(
            text,
            "_Static_assert({} == {}, \"{name}\");",
            if $name == "handed_syn" { "offsetof(struct handed_syn, packet)" } else { concat!("sizeof(struct ", $name, ")") },
            size_of::<$record>(),
            name = $name,
        )
        .unwrap();)*
        text
    }};
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

#[test]
fn the_programs_have_the_same_records() {
    let assertions = assertions! {
        "flow": Flow { client, vip, client_port, vip_port }
        "service": Service { address, port, zero }
        "agent": Agent { mac, own_mac, mtu, source }
        "mac": Mac { words, unused }
        "rule": Rule { agent, until, zero }
        "rule_event": RuleEvent { flow, owner, is_connection }
        "handed_syn": HandedSyn { key, bytes, zero }
        "injector": Injector { heartbeat, syns_max }
        "injected_syn": InjectedSyn { flow, sequence, key }
        "keyed_handshake": KeyedHandshake { key, sequence, progress }
        "clock": Clock { sent, echoed, offset, since, offset_before, bits, has_offset, has_offset_before }
        "responses": Responses { classes, nanoseconds, resets }
        "sampling": Sampling { mask, seed }
        "opening": Opening { owner, key, bucket, bits, version, zero }
    };
    let compiled = |assertions: &str| {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("records.c");
        let programs = concat!("#include \"", env!("CARGO_MANIFEST_DIR"), "/bpf/agent.bpf.c\"\n");
        fs::write(&source, [programs, assertions].concat()).unwrap();
        compile::compile("clang", source.to_str().unwrap(), &folder.path().join("records.o"))
    };
    assert_eq!(compiled(&assertions), Ok(()));
    // It does look.
    let refused = compiled(&assertions.replacen("== 32", "== 33", 1)).unwrap_err();
    assert!(refused.contains("flow.client_port"), "{refused}");
}
