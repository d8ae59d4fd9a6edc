//! What an explanation says is what then happens.

use crate::common::{Machine, Tcp, message, tcp};
use datapath::explain::{Details, explain};
use datapath::{DropReason, FlowHash, Secret};
use plan::proto::BackendState::Draining;

fn key(bytes: &[u8]) -> wire::FlowKey {
    wire::headers::parse(bytes).unwrap().unwrap().key
}

#[test]
fn an_explanation_names_what_forwarding_then_does() {
    let mut machine = Machine::new(message(10), 1000);
    let hash = FlowHash::new(&Secret::derived("test"));
    for port in 1..100 {
        let packet = tcp(9, port, Tcp::Ack);
        let told =
            explain(&machine.view, &hash, &machine.tables, &key(&packet), Details::default());
        let (_, journey, frame) = machine.forward(0, &packet);
        assert_eq!(
            (told.backend, told.slot, told.matched),
            (journey.backend, journey.slot, journey.matched)
        );
        assert_eq!(told.tracked, None);
        assert_eq!(told.outer[..14], frame[..14]);
        assert_eq!(told.outer[26..38], frame[26..38], "addresses and GRE");
        let again =
            explain(&machine.view, &hash, &machine.tables, &key(&packet), Details::default())
                .tracked
                .unwrap();
        assert_eq!((Some(again.backend), again.decides), (told.backend, true));
    }
}

#[test]
fn without_a_tunnel_the_backends_ethernet_address_is_all_there_is() {
    let mut plan = message(1);
    plan.services[0].set_encap(plan::proto::Encap::L2);
    let mut machine = Machine::new(plan, 100);
    let hash = FlowHash::new(&Secret::derived("test"));
    let packet = tcp(9, 1, Tcp::Ack);
    let told = explain(&machine.view, &hash, &machine.tables, &key(&packet), Details::default());
    let (_, _, frame) = machine.forward(0, &packet);
    assert_eq!((told.end, &told.outer[..]), (None, &frame[..14]));
}

#[test]
fn a_tracked_connection_overrides_the_hash() {
    let mut machine = Machine::new(message(4), 1000);
    let hash = FlowHash::new(&Secret::derived("test"));
    let packet = tcp(9, 7, Tcp::Ack);
    let backend = machine.backend(0, &packet).unwrap();
    let mut drained = message(4);
    drained.groups[0]
        .members
        .iter_mut()
        .find(|member| member.backend == backend)
        .unwrap()
        .set_state(Draining);
    machine.set(drained);
    let told = explain(&machine.view, &hash, &machine.tables, &key(&packet), Details::default());
    assert_ne!(told.by_hash, told.backend);
    assert_eq!(machine.backend(0, &packet).unwrap(), backend);
}

#[test]
fn an_end_is_named() {
    let mut plan = message(1);
    plan.services[0].vips[0].set_protocol(plan::proto::Protocol::Udp);
    let machine = Machine::new(plan, 100);
    let hash = FlowHash::new(&Secret::derived("test"));
    let mut flow = key(&tcp(9, 7, Tcp::Ack));
    assert_eq!(
        explain(&machine.view, &hash, &[], &flow, Details::default()).end,
        Some(DropReason::NoService)
    );
    flow.destination += 1;
    let told = explain(&machine.view, &hash, &[], &flow, Details::default());
    assert_eq!((told.end, told.matched), (None, None));
}
