//! Object files: loads them, and finds their contents by name.

use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use aya::maps::{Map, MapData, MapError, PerCpuArray};
use aya::programs::{Program, ProgramError, ProgramFd};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

/// What compiled the programs.
const COMPILER: &str = env!("BPF_COMPILER");

const NEEDED: &str = "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and Linux 5.16 or later";

/// Why an object cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The kernel refuses its tables.
    #[error("cannot load the eBPF object: {0}; {NEEDED}")]
    Load(String),
    /// The object and this program are of different builds.
    #[error("the eBPF object lacks {0}: rebuild")]
    Missing(&'static str),
    /// The kernel does not load a program.
    #[error("the kernel refuses the eBPF program {name}, compiled by {COMPILER}: {reason}")]
    Refused {
        /// The program.
        name: &'static str,
        /// The kernel's reason, with a cure.
        reason: String,
    },
    /// A table is not of the kind that this program knows.
    #[error("the eBPF table {name} cannot be used: {error}")]
    Table {
        /// The table.
        name: &'static str,
        /// What is wrong with it.
        error: String,
    },
}

/// Makes the tables of an object; its programs are not in the kernel yet.
pub fn load(bytes: &[u8]) -> Result<Ebpf, ObjectError> {
    load_with(bytes, |_| {})
}

/// The same, with constants and sizes of tables that `settings` sets.
pub fn load_with<'s>(
    bytes: &[u8],
    settings: impl FnOnce(&mut EbpfLoader<'s>),
) -> Result<Ebpf, ObjectError> {
    let mut loader = EbpfLoader::new();
    // Without each step of the verifier, which makes it many times slower: a refusal has its
    // reason all the same.
    loader.verifier_log_level(VerifierLogLevel::STATS);
    settings(&mut loader);
    loader.load(bytes).map_err(|error| ObjectError::Load(with_causes(&error)))
}

/// The same, with tables that outlive the process: each has a path in the BPF file system,
/// and is the one that a predecessor left there, if it did. A table whose layout changes
/// takes another name.
pub fn load_with_tables(bytes: &[u8], pinned: &[(&str, PathBuf)]) -> Result<Ebpf, ObjectError> {
    load_with(bytes, |loader| {
        for (name, path) in pinned {
            loader.map_pin_path(name, path);
        }
    })
}

/// A program of an object.
pub fn program<'o, P>(object: &'o mut Ebpf, name: &'static str) -> Result<&'o mut P, ObjectError>
where
    &'o mut P: TryFrom<&'o mut Program>,
{
    let found = object.program_mut(name).and_then(|program| program.try_into().ok());
    found.ok_or(ObjectError::Missing(name))
}

/// Loads a program into the kernel, which verifies it.
pub fn load_program(object: &mut Ebpf, name: &'static str) -> Result<(), ObjectError> {
    let loaded = match object.program_mut(name) {
        Some(Program::Xdp(program)) => program.load(),
        Some(Program::SchedClassifier(program)) => program.load(),
        Some(Program::SocketFilter(program)) => program.load(),
        _ => return Err(ObjectError::Missing(name)),
    };
    loaded.map_err(|error| ObjectError::Refused { name, reason: refusal(&error) })
}

/// The descriptor of a program that was loaded.
pub fn program_fd<'o>(object: &'o Ebpf, name: &'static str) -> Result<BorrowedFd<'o>, ObjectError> {
    let program = object.program(name).and_then(|program| program.fd().ok());
    program.map(ProgramFd::as_fd).ok_or(ObjectError::Missing(name))
}

/// The kernel's reason in one line: of what its verifier says, the last words, and what to do.
fn refusal(error: &ProgramError) -> String {
    let ProgramError::LoadError { io_error, verifier_log } = error else {
        return with_causes(error);
    };
    match last_words(&verifier_log.to_string()) {
        Some(words) => format!(
            "{words}; build with another clang (CLANG=clang-N make build), and please report this one, with `uname -r`"
        ),
        None => format!("{io_error}; {NEEDED}"),
    }
}

/// The verifier's last line that is not about its own work.
fn last_words(log: &str) -> Option<&str> {
    let is_reason = |line: &&str| {
        !line.is_empty()
            && !line.starts_with("processed ")
            && !line.starts_with("verification time ")
            && !line.starts_with("stack depth ")
    };
    log.lines().map(str::trim).rfind(is_reason)
}

/// Takes a table out of an object.
pub fn table<T>(object: &mut Ebpf, name: &'static str) -> Result<T, ObjectError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = object.take_map(name).ok_or(ObjectError::Missing(name))?;
    T::try_from(map).map_err(|error| ObjectError::Table { name, error: with_causes(&error) })
}

/// A table's first counters, each over all CPUs.
pub fn sums<const N: usize>(table: &PerCpuArray<MapData, u64>) -> Result<[u64; N], String> {
    let mut sums = [0; N];
    for (index, sum) in (0..).zip(&mut sums) {
        let per_cpu = table.get(&index, 0);
        let per_cpu =
            per_cpu.map_err(|error| format!("cannot read counters: {}", with_causes(&error)))?;
        *sum = per_cpu.iter().sum();
    }
    Ok(sums)
}

/// An error with all its causes, which aya's own text leaves out.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("loading failed")]
        struct LoadFailed(#[source] std::io::Error);
        let error = LoadFailed(std::io::Error::other("not permitted"));
        assert_eq!(with_causes(&error), "loading failed: not permitted");
    }

    #[test]
    fn of_a_refusal_the_verifiers_last_words_are_told() {
        let log = "func#0 @0\nR9 unbounded memory access\n\nprocessed 133 insns (limit 1000000)\nstack depth 64\n";
        assert_eq!(last_words(log), Some("R9 unbounded memory access"));
        assert_eq!(last_words("processed 1 insns\n"), None);
    }

    #[test]
    fn bytes_that_are_no_object_are_refused() {
        let error = load(b"no object file").unwrap_err();
        assert!(matches!(error, ObjectError::Load(_)), "{error}");
    }
}
