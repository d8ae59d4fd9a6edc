//! Compiles the kernel-side program in `bpf/`.

#[path = "../tools/bpf.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["decapsulate"]);
}
