//! For the tests of crates with eBPF programs: passes each compiler's output through the
//! kernel's verifier. Compilers differ in how they write loops and comparisons, so the kernel
//! may accept a program from one and refuse it from another.

use std::env;
use std::fs;
use std::time::Instant;

use aya::Ebpf;
use aya::programs::{Program, ProgramError};

#[path = "compile.rs"]
pub mod compile;

/// Instructions that the verifier may go through, over all paths of a program. It gives up at
/// a million, and other kernels' and other compilers' paths are others.
const VERIFIED_MAX: u32 = 160_000;

/// Compiles the object of this name with each compiler in BPF_COMPILERS (`clang` if that is
/// not set), and loads its programs after `open` made its tables.
///
/// # Panics
/// If a compiler or the kernel refuses a program, or the verifier has much to do.
pub fn load_with_every_compiler(name: &str, open: impl Fn(&[u8]) -> Ebpf) {
    let compilers = env::var("BPF_COMPILERS").unwrap_or_else(|_| "clang".to_owned());
    assert!(!compilers.trim().is_empty(), "BPF_COMPILERS names none");
    for compiler in compilers.split_whitespace() {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (format!("bpf/{name}.bpf.c"), folder.path().join("object.o"));
        compile::compile(compiler, &source, &object).unwrap();
        let mut object = open(&fs::read(object).unwrap());
        assert_ne!(object.programs().count(), 0, "{name} has no program");
        for (name, program) in object.programs_mut() {
            let begun = Instant::now();
            load(program).unwrap_or_else(|error| panic!("{compiler}: {name}: {error}"));
            let verified = program.info().unwrap().verified_instruction_count();
            let verified = verified.expect("Linux 5.16 says it");
            println!("{compiler}: {name}: {verified} instructions in {:?}", begun.elapsed());
            assert!(verified <= VERIFIED_MAX, "{compiler}: {name}: {verified} instructions");
        }
    }
}

fn load(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::Xdp(program) => program.load(),
        Program::SchedClassifier(program) => program.load(),
        Program::SocketFilter(program) => program.load(),
        _ => panic!("a program of a kind that nothing here loads"),
    }
}
