//! Prints the agent's table for docs/counters.md: `make generate`.

fn main() {
    println!("metrics of the agent\n{}", daemon::metrics::table(guideway_agent::METRICS));
}
