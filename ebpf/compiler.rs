//! The compiler of the eBPF programs: the environment variable CLANG, or `clang` if it is not
//! set. Build scripts include this file, like `compile.rs`.

use std::env;
use std::process::Command;

/// The compiler's name.
pub fn name() -> String {
    println!("cargo::rerun-if-env-changed=CLANG");
    env::var("CLANG").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "clang".to_owned())
}

/// What the compiler says first about itself; its name if it does not run.
pub fn version() -> String {
    let output = Command::new(name()).arg("--version").output().ok();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    said.as_deref().and_then(|said| said.lines().next()).map_or_else(name, str::to_owned)
}
