//! The program `guideway-forwarder`.

use std::process::ExitCode;

use clap::Parser;
use daemon::logging;
use datapath::explain::Details;
use guideway_forwarder::arguments::{Arguments, Command, DiffArgs, ExplainArgs, SelectArgs};
use guideway_forwarder::offline::replay;
use guideway_forwarder::{offline, run};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command.unwrap_or(Command::Run(arguments.run)) {
        Command::Run(options) if options.detach => run::detach(),
        Command::Run(options) => run::run(options),
        Command::Replay(options) => replay(&options),
        Command::Select(args) => select(&args),
        Command::Explain(args) => explain(&args),
        Command::Diff(args) => diff(&args),
        Command::Version => {
            println!("guideway-forwarder {}", daemon::VERSION_AND_COMMIT);
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::fail("guideway-forwarder", &error);
            ExitCode::FAILURE
        }
    }
}

fn replay(options: &replay::Options) -> Result<(), Box<dyn std::error::Error>> {
    let counters = replay::replay(options)?;
    if options.counters.is_none() {
        println!("{counters:#}");
    }
    Ok(())
}

fn select(args: &SelectArgs) -> Result<(), Box<dyn std::error::Error>> {
    let out = std::io::BufWriter::new(std::io::stdout().lock());
    offline::select(&args.plan, args.secret_file.as_deref(), std::io::stdin().lock(), out)
}

fn explain(args: &ExplainArgs) -> Result<(), Box<dyn std::error::Error>> {
    let out = std::io::stdout().lock();
    let details = Details {
        connection_id: args.connection_id.as_ref().map(|given| given.0.as_slice()),
        tcp_header: args.tcp_header.as_ref().map(|given| given.0.as_slice()),
    };
    offline::explain(&args.plan, args.secret_file.as_deref(), &args.flow.join(" "), details, out)
}

fn diff(args: &DiffArgs) -> Result<(), Box<dyn std::error::Error>> {
    let [before, after] = args.plan.as_slice() else {
        return Err("diff takes --plan twice: the plan before and the plan after".into());
    };
    offline::diff(before, after, &mut std::io::stdout().lock())
}
