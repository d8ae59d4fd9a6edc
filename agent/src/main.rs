//! The program `guideway-agent`; the library is the agent.

use std::process::ExitCode;

use clap::Parser;
use daemon::logging;
use guideway_agent::config::Config;
use guideway_agent::{Arguments, run};

/// As clap's own, for wrong arguments: no restart cures it.
const WRONG_CONFIG: u8 = 2;

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
    match run(&config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}
