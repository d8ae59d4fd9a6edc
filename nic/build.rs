//! Compiles the eBPF filters in `bpf/`.

#[path = "../ebpf/compile_all.rs"]
mod compile_all;

fn main() {
    compile_all::compile_all(&["redirect", "packet", "reflect", "live"]);
}
