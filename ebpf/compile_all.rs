//! The common part of the build scripts of crates with eBPF programs.

use std::env;
use std::path::Path;

#[path = "compile.rs"]
mod compile;
#[path = "compiler.rs"]
mod compiler;

/// Compiles `bpf/NAME.bpf.c` into the build's folder for each name; what goes
/// wrong becomes the build's error.
pub fn compile_all(names: &[&str]) {
    println!("cargo::rerun-if-changed=bpf");
    for file in ["compile.rs", "compile_all.rs", "compiler.rs", "hook.h", "tunnels.h"] {
        println!("cargo::rerun-if-changed=../ebpf/{file}");
    }
    let variable = |name| env::var(name).map_err(|error| format!("{name}: {error}"));
    for name in names {
        let compiled = variable("OUT_DIR").and_then(|folder| {
            let object = Path::new(&folder).join(format!("{name}.bpf.o"));
            compile::compile(&compiler::name(), &format!("bpf/{name}.bpf.c"), &object)
        });
        if let Err(problem) = compiled {
            println!("cargo::error=bpf/{name}.bpf.c, {}: {problem}", compiler::version());
        }
    }
}
