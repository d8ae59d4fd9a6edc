//! Prints the table of docs/counters.md that is the agent's: `make generate`.

fn main() {
    println!("metrics of the agent\n{}", daemon::metrics::table(guideway_agent::METRICS));
}
