//! Starts a successor on request, if no service manager does: the installed program, with this
//! process's arguments.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a process that was started with `--announce` prints when it forwards.
pub const FORWARDING: &str = "forwarding";

/// The name of the thread that waits for successors, as the operating system shows it.
pub const THREAD: &str = "take-over";

/// Flags that a successor has and a forwarder that just starts has not.
pub const TAKE_OVER_FLAGS: [&str; 3] = ["--take-over", "--detach", "--announce"];

/// How the kernel names the program of a process whose file was replaced.
const REPLACED: &[u8] = b" (deleted)";

/// Starts a successor, and returns its process when it forwards; this one is about
/// to end then. Where it fails, this one goes on.
pub fn start() -> io::Result<u32> {
    let program = installed(std::env::current_exe()?);
    tracing::info!(program = %program.display(), "starting a successor, as requested");
    let failed = |why: String| {
        io::Error::other(format!(
            "the successor ({}) {why}: the forwarder's log says more; the one that runs goes on",
            program.display()
        ))
    };
    let mut child = Command::new(&program)
        .args(successor_arguments(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("could not be started ({error})")))?;
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() == FORWARDING {
        return Ok(child.id());
    }
    let status = child.wait()?;
    Err(failed(format!("ended with {status}")))
}

/// The file that has the place of the one that runs.
fn installed(running: PathBuf) -> PathBuf {
    let path = running.into_os_string().into_vec();
    let path = path.strip_suffix(REPLACED).map_or(path.clone(), <[u8]>::to_vec);
    PathBuf::from(OsString::from_vec(path))
}

fn successor_arguments(own: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    own.filter(|argument| {
        !TAKE_OVER_FLAGS.iter().any(|flag| argument.as_bytes() == flag.as_bytes())
    })
    .chain(["--take-over", "--announce"].map(OsString::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_found_where_it_was() {
        assert_eq!(installed("/usr/bin/f (deleted)".into()), PathBuf::from("/usr/bin/f"));
        assert_eq!(installed("/usr/bin/f".into()), PathBuf::from("/usr/bin/f"));
    }

    #[test]
    fn a_successor_has_the_arguments_of_this_process_and_its_flags_once() {
        let own = ["run", "--take-over", "--detach", "--run-dir", "/r"].map(OsString::from);
        let arguments: Vec<_> = successor_arguments(own.into_iter()).collect();
        assert_eq!(arguments, ["run", "--run-dir", "/r", "--take-over", "--announce"]);
    }
}
