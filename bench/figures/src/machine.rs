//! The machine's description, as the label of measurements, and the clock for them.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor, cores and kernel in one line.
#[must_use]
pub fn label() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |found| found.1.trim()).to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{model}, {} cores, Linux {}", cores(), kernel.trim())
}

/// Processes that ran or waited for a core lately: in the last minute, five, fifteen.
/// What others do here slows down what is measured.
#[must_use]
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Cores this program may use.
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The time this thread has been running on a core: steadier than the time of
/// day where others use the machine too.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_takes_no_time_of_the_thread() {
        let before = thread_time();
        thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - before < Duration::from_millis(25));
    }
}
