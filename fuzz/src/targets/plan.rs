//! Decoding any bytes as a Plan, as protobuf and as JSON: the result is a Plan or a refusal,
//! never a panic; and a Plan that exists works.

use plan::{Plan, Planner, proto};
use prost::Message;
use wire::{Family, FlowKey, Protocol};

/// Decodes the input.
pub fn run(data: &[u8]) {
    let Some(message) = message(data) else { return };
    // Building large tables is slow and the same for all: not what is tried.
    if message.services.iter().any(|service| service.table_size == 0 || service.table_size > 2_000)
    {
        return;
    }
    let mut planner = Planner::default();
    let ids = planner.ids().clone();
    match planner.plan(message.clone()) {
        Ok(plan) => works(&plan, &mut planner, &message),
        Err(refused) => {
            assert!(!refused.path.is_empty() && !refused.problem.is_empty(), "{refused:?}");
            assert_eq!(*planner.ids(), ids, "a refused plan changes no ids");
        }
    }
}

/// JSON begins with a brace, which as protobuf would be an old group.
fn message(data: &[u8]) -> Option<proto::Plan> {
    match data.first() {
        Some(b'{') => serde_json::from_slice(data).ok(),
        _ => proto::Plan::decode(data).ok(),
    }
}

fn works(plan: &Plan, planner: &mut Planner, message: &proto::Plan) {
    for service in plan.services() {
        let selected = service.group.select(0x0123_4567_89ab_cdef);
        assert_eq!(selected.is_some(), service.group.selector().is_some());
        for member in service.group.members() {
            assert!(plan.backend(member.backend).is_some(), "members are backends");
        }
    }
    for (family, bits) in [(Family::V4, 0xcb00_710a), (Family::V6, 0x2001_0db8 << 96)] {
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
            let key = FlowKey {
                family,
                protocol,
                source: 0,
                destination: bits,
                source_port: 0,
                destination_port: 80,
            };
            let _ = plan.vips.find(&key.target());
        }
    }
    let _ = plan.vip_prefixes();
    // As JSON and back it is the same message, and the same plan again.
    let text = serde_json::to_string(message).expect("a plan is JSON");
    assert_eq!(serde_json::from_str::<proto::Plan>(&text).expect("our own JSON"), *message);
    let again = planner.plan(message.clone()).expect("accepted before");
    assert!(plan.services().zip(again.services()).all(|(a, b)| a.id == b.id), "ids stay");
}
