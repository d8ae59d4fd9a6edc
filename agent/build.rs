//! Compiles the eBPF programs in `bpf/`, and generates the messages to controllers from
//! `proto/`; those of the plan come from the crate `plan`.

#[path = "../ebpf/compile_all.rs"]
mod compile_all;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    compile_all::compile_all(&["agent", "agent_tc", "pass"]);
    let root = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../proto");
    let file = root.join("guideway/agent/v1/agent.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    println!("cargo:rerun-if-changed={}", root.join("guideway/plan/v1/plan.proto").display());
    prost_build::Config::new()
        .extern_path(".guideway.plan.v1", "::plan::proto")
        .compile_fds(protox::compile([&file], [&root])?)?;
    Ok(())
}
