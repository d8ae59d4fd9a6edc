//! Compiles eBPF programs. Build scripts and tests include this file; it is not part of the
//! library, because a build script that depends on the library would build it and the BPF
//! loader a second time.

use std::path::Path;
use std::process::Command;

const CURE: &str = "install it with: apt-get install clang libbpf-dev";

/// Compiles a file of the crate in the current folder.
pub fn compile(compiler: &str, source: &str, object: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .args([
            "-O2",
            // No path of the machine that builds is in what is built.
            "-ffile-compilation-dir=.",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-I",
            // Debian keeps asm/types.h in a directory per machine, which clang does
            // not look into when it compiles for another one. The building machine's will
            // do, whatever machine is built for.
            &format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH),
            "-I",
            "../ebpf",
            "-c",
        ])
        .arg(source)
        .arg("-o")
        .arg(object)
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
