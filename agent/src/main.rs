//! The program `guideway-agent`; the library contains the agent.

use std::process::ExitCode;

use clap::Parser;
use daemon::{logging, say};
use guideway_agent::config::Config;
use guideway_agent::{
    Arguments, Command, Format, attachment, doctor, multipath, run, setup, status,
};
use tokio::signal::unix::{SignalKind, signal};

/// As clap's own, for wrong arguments: no restart cures it.
const WRONG_CONFIG: u8 = 2;

/// A backend that is to have no agent any more.
fn detach(config: &Config) -> Result<(), String> {
    let Some(directory) = &config.pin else {
        return Err("the config has `pin: off`, or /sys/fs/bpf is no BPF file system: the program goes with its agent".to_string());
    };
    let was_there = attachment::detach(directory)?;
    say!("{}", if was_there { "detached" } else { "no program is pinned" });
    Ok(())
}

fn show_status(config: &Config, format: Format) -> ExitCode {
    let status = match status::read(&config.interface) {
        Ok(status) => status,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    match format {
        Format::Table => say!("{}", status::table(&status).trim_end()),
        Format::Json => say!("{}", serde_json::to_string(&status).expect("a status is JSON")),
    }
    ExitCode::SUCCESS
}

/// The guard of an agent. Signals are for the agent, which ends first.
fn restore_syn_cookies() -> ExitCode {
    let handlers = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let result = multipath::guard::run();
    drop(handlers);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("cannot restore tcp_syncookies: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start(arguments.log_format);
    match &arguments.command {
        Some(Command::Doctor { output }) => return doctor::run(&arguments.config, *output),
        Some(Command::Setup { from: Some(from), dry_run, .. }) => {
            return setup::run(from, *dry_run, &arguments.config);
        }
        Some(Command::Setup { dry_run, .. }) => return setup::undo(*dry_run),
        Some(Command::Version) => {
            say!("guideway-agent {}", daemon::VERSION_AND_COMMIT);
            return ExitCode::SUCCESS;
        }
        Some(Command::RestoreSynCookies) => return restore_syn_cookies(),
        Some(Command::Status { .. }) | None => {}
    }
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            for problem in error.problems() {
                tracing::error!("{problem}");
            }
            return ExitCode::from(WRONG_CONFIG);
        }
    };
    if let Some(Command::Status { output }) = arguments.command {
        return show_status(&config, output);
    }
    if arguments.check {
        say!("{} is good", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    let result = match arguments.detach {
        true => detach(&config),
        false => run(&arguments.config, &config, arguments.timestamp_shift).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}
