//! The program `guideway-agent`; the library is the agent.

use std::process::ExitCode;

use clap::Parser;
use daemon::logging;
use guideway_agent::{Arguments, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tracing::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}
