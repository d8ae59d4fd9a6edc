//! The program for tools/fuzz.sh: libFuzzer with the target named by FUZZ_TARGET.
#![no_main]

use std::sync::LazyLock;

use guideway_fuzz::targets::TARGETS;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("FUZZ_TARGET={wanted}: there is no such target")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
