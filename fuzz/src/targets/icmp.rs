//! ICMP messages to a VIP, with any content, in well-formed packets: more of them reach the
//! slow path here than among arbitrary frames.
//!
//! ```text
//!  input   | 16 bytes: a plan | family | wait | length (2) | message | ...
//! ```

use std::cell::RefCell;

use crate::machine::{Machine, Path};
use crate::{Bytes, plans};
use datapath::Verdict;
use wire::{EtherType, MacAddress, Protocol, ethernet, ipv4, ipv6};

const VIP: u32 = 0xcb00_710a;
const VIP6: u128 = 0x2001_0db8_000f_0000_0000_0000_0000_0010;
const ROUTER: u32 = 0xc633_6401;
const ROUTER6: u128 = 0x2001_0db8_ffff_0000_0000_0000_0000_0001;

thread_local!(static MACHINE: RefCell<Machine> = RefCell::new(Machine::new(Path::Batch)));

/// Forwards the messages of the input.
pub fn run(data: &[u8]) {
    MACHINE.with_borrow_mut(|machine| forward(data, machine));
}

fn forward(data: &[u8], machine: &mut Machine) {
    let mut input = Bytes(data);
    let mut choices = Bytes(input.take(16));
    let mtu = plans::MTUS[usize::from(choices.byte() & 7)];
    machine.restart(plans::plan(&mut choices, 1), mtu);
    let mut now_ms = 0;
    while !input.0.is_empty() {
        let six = input.byte() & 1 != 0;
        let Some((wait_ms, message)) = input.frame() else { break };
        now_ms += u64::from(wait_ms);
        let frame = if six { frame6(&message) } else { frame4(&message) };
        let outcome = machine.forward(now_ms, &[&frame]).remove(0);
        let possible = matches!(
            outcome.verdict,
            Verdict::Reply
                | Verdict::ReplyBy(_)
                | Verdict::Send(_)
                | Verdict::Redirect(_)
                | Verdict::Drop(_)
        );
        assert!(possible, "{:?} of {frame:02x?}", outcome.verdict);
    }
}

fn frame4(message: &[u8]) -> Vec<u8> {
    let message = &message[..message.len().min(1480)];
    let header = ipv4::Emit {
        packet_bytes: (ipv4::HEADER_BYTES + message.len()) as u16,
        traffic_class: 0,
        id: 1,
        flags: 0,
        ttl: 9,
        protocol: Protocol::ICMP,
        source: ROUTER,
        destination: VIP,
    };
    [&link(EtherType::IPV4)[..], &header.to_bytes(), message].concat()
}

fn frame6(message: &[u8]) -> Vec<u8> {
    let message = &message[..message.len().min(1460)];
    let header = ipv6::Emit {
        payload_bytes: message.len() as u16,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 9,
        protocol: Protocol::ICMPV6,
        source: ROUTER6,
        destination: VIP6,
    };
    [&link(EtherType::IPV6)[..], &header.to_bytes(), message].concat()
}

fn link(ether_type: EtherType) -> [u8; ethernet::HEADER_BYTES] {
    ethernet::emit(MacAddress([2; 6]), MacAddress([4; 6]), ether_type)
}
