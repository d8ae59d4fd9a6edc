//! Records which compiler makes the eBPF programs, for the messages about programs that the
//! kernel refuses.

mod compiler;

fn main() {
    println!("cargo::rustc-env=BPF_COMPILER={}", compiler::version());
}
