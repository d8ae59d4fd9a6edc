//! Compiles eBPF programs with clang, for the build scripts of the crates that
//! load them. A file that they take in, and no part of the library: a build
//! script that depends on the library would have it and the BPF loader built a
//! second time.

use std::env;
use std::path::Path;
use std::process::Command;

const CURE: &str = "install it with: apt-get install clang libbpf-dev";

/// Compiles `bpf/NAME.bpf.c` into the build's folder for each name; what goes
/// wrong becomes the build's error.
pub fn compile_all(names: &[&str]) {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed=../ebpf/compile.rs");
    println!("cargo::rerun-if-changed=../ebpf/tunnels.h");
    for name in names {
        if let Err(problem) = compile(name) {
            println!("cargo::error=bpf/{name}.bpf.c: {problem}");
        }
    }
}

fn compile(name: &str) -> Result<(), String> {
    let variable = |name| env::var(name).map_err(|error| format!("{name}: {error}"));
    let target = Path::new(&variable("OUT_DIR")?).join(format!("{name}.bpf.o"));
    // Debian keeps asm/types.h in a directory per machine, which clang does
    // not look into when it compiles for another one.
    let machine = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")?);
    let output = Command::new("clang")
        .args([
            "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3", "-I",
            &machine, "-I", "../ebpf", "-c",
        ])
        .arg(format!("bpf/{name}.bpf.c"))
        .arg("-o")
        .arg(target)
        .output()
        .map_err(|error| format!("cannot run clang: {error}; {CURE}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "clang: {}; if a header is missing, {CURE}",
        String::from_utf8_lossy(&output.stderr).replace('\n', " | ")
    ))
}
