//! Prints the forwarder's tables for docs/counters.md: `make generate`.

use datapath::DropReason;
use guideway_forwarder::observe::metrics::definitions;

fn main() {
    println!("metrics of the forwarder\n{}", daemon::metrics::table(definitions::ALL));
    println!("drop reasons\n| reason | meaning | usual cause |\n|---|---|---|");
    for reason in DropReason::ALL {
        println!("| `{}` | {} | {} |", reason.name(), reason.meaning(), reason.usual_cause());
    }
}
