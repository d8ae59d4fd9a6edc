//! Compiles the eBPF program in `bpf/`.

#[path = "../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::compile_all(&["agent", "pass"]);
}
