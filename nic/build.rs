//! Compiles the kernel-side filters in `bpf/`.

#[path = "../tools/bpf.rs"]
mod bpf;

fn main() {
    bpf::compile_all(&["redirect", "packet"]);
}
