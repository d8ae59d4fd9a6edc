//! A program at the far end of a veth pair.

use ebpf::xdp::ModePreference;
use testnet::Namespace;

/// Attaches a program that passes all frames. Trap: a frame that the near end's program
/// sends by XDP_TX waits until the far end receives something else, unless that has a
/// program, too.
pub fn pass(namespace: &Namespace, interface: &str) -> ebpf::Link {
    static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
    let mut object = ebpf::load(OBJECT).unwrap();
    ebpf::load_program(&mut object, "guideway_pass").unwrap();
    namespace.inside(|| {
        let index = ebpf::index_of(interface).unwrap();
        let program = ebpf::program_fd(&object, "guideway_pass").unwrap();
        ebpf::xdp::attach(program, interface, index, ModePreference::Native).unwrap().0
    })
}
