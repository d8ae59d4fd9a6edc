//! Compiles eBPF programs. A file that build scripts and tests take in, and no part of the
//! library: a build script that depends on the library would have it and the BPF loader built
//! a second time.

use std::path::Path;
use std::process::Command;

const CURE: &str = "install it with: apt-get install clang libbpf-dev";

/// Compiles `bpf/NAME.bpf.c` of the crate in the current folder into `folder`.
pub fn compile(compiler: &str, arch: &str, name: &str, folder: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .args([
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-I",
            // Debian keeps asm/types.h in a directory per machine, which clang does
            // not look into when it compiles for another one.
            &format!("/usr/include/{arch}-linux-gnu"),
            "-I",
            "../ebpf",
            "-c",
        ])
        .arg(format!("bpf/{name}.bpf.c"))
        .arg("-o")
        .arg(folder.join(format!("{name}.bpf.o")))
        .output()
        .map_err(|error| format!("cannot run {compiler}: {error}; {CURE}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{compiler}: {}; if a header is missing, {CURE}",
        String::from_utf8_lossy(&output.stderr).replace('\n', " | ")
    ))
}
