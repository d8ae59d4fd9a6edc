//! Compiles the eBPF filters in `bpf/`.

#[path = "../ebpf/compile.rs"]
mod compile;

fn main() {
    compile::compile_all(&["redirect", "losses", "packet", "reflect"]);
}
