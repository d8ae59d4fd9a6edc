//! The program `guideway-agent`; the library is the agent.

use std::process::ExitCode;

use clap::Parser;
use daemon::logging;
use guideway_agent::config::Config;
use guideway_agent::{Arguments, attachment, run};

/// As clap's own, for wrong arguments: no restart cures it.
const WRONG_CONFIG: u8 = 2;

/// A backend that is to have no agent any more.
fn detach(config: &Config) -> Result<(), String> {
    let Some(directory) = &config.pin else {
        return Err("the config has no `pin`: the program goes with its agent".to_string());
    };
    let was_there = attachment::detach(directory)?;
    println!("{}", if was_there { "detached" } else { "no program is pinned" });
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            for problem in error.problems() {
                tracing::error!("{problem}");
            }
            return ExitCode::from(WRONG_CONFIG);
        }
    };
    if arguments.check {
        println!("{} is good", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    let result = if arguments.detach { detach(&config) } else { run(&config).await };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}
