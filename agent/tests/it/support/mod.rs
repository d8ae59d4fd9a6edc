//! A running agent, for the tests between namespaces.

pub mod bpf_file_system;
pub mod pass;
pub mod tap;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running agent; killed when dropped.
pub struct Agent {
    /// Its process.
    pub child: Child,
    /// What it said when it was ready.
    pub ready: String,
}

impl Agent {
    /// Starts it, and waits until it is ready.
    pub fn start(mut command: Command) -> Agent {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        Agent { child, ready }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
