//! Writes man pages and shell completions of the Rust programs (the Go programs write their
//! own, cli/commandline/pages.go): `pages FOLDER` writes the files for /usr/share into it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use guideway_agent::Arguments as Agent;
use guideway_forwarder::arguments::Arguments as Forwarder;

const COMPLETION: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
    (Shell::Zsh, "zsh/site-functions"),
];

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: pages FOLDER");
        return ExitCode::from(2);
    };
    let written = [Agent::command(), Forwarder::command()]
        .into_iter()
        .try_for_each(|program| write(program, &folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pages: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(mut program: Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    for (shell, place) in COMPLETION {
        let place = folder.join(place);
        fs::create_dir_all(&place)?;
        clap_complete::generate_to(shell, &mut program, &name, place)?;
    }
    let pages = folder.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(program.disable_help_subcommand(true), pages)
}
