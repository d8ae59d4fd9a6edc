//! The XDP filter in the kernel, but on no interface: run on frames that are given to
//! it (BPF_PROG_TEST_RUN), for tests and measurements.
//!
//! Traps. The kernel runs it on frames of at least an Ethernet header, as if they had
//! come in on queue 0 of the loopback device. No socket is connected, so that a frame
//! of ours is dropped and counted as `no_socket`. A repetition begins with the frame
//! as the one before left it.

use std::io;
use std::time::Duration;

use aya::Ebpf;
use aya::programs::{TestRun, TestRunOptions, Xdp};
use ebpf::ObjectError;

use super::program::{self, FILTER};
use crate::filter::Filter;
use crate::kernel_cache::{CacheConfig, CacheMemory};

const MEASURE: &str = "guideway_measure";

/// A filter to try.
pub struct FilterRun {
    object: Ebpf,
    /// Which of the object's programs.
    name: &'static str,
    /// What is ours.
    pub filter: Filter,
    /// The kernel flow cache.
    pub cache: CacheMemory,
}

/// What the wrapper does.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Flows that it goes through, a power of two, less one.
    pub flow_mask: u32,
    /// Whose packets are of IPv6.
    pub is_v6: bool,
    /// False: it is the floor.
    pub with_cache: bool,
}

/// What a filter does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is ours: dropped for want of a socket.
    Drop,
    /// It is the kernel's.
    Pass,
    /// It is sent by the device that it came in on.
    Transmit,
    /// It is sent by another device.
    Redirect,
    /// Another, which the filter has none of.
    Other(u32),
}

impl From<u32> for Action {
    /// XDP's actions of linux/bpf.h.
    fn from(action: u32) -> Action {
        match action {
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Transmit,
            4 => Action::Redirect,
            other => Action::Other(other),
        }
    }
}

impl FilterRun {
    /// Loads a filter with that cache.
    pub fn load(config: CacheConfig) -> Result<FilterRun, ObjectError> {
        let (object, _, filter, cache) = program::load(Some(config), &[])?;
        let cache = cache.ok_or(ObjectError::Missing("cache_entries"))?;
        Ok(FilterRun { object, name: FILTER, filter, cache })
    }

    /// Loads the filter's wrapper, which is repeated on one frame.
    pub fn load_to_measure(
        config: CacheConfig,
        measured: Measured,
    ) -> Result<FilterRun, ObjectError> {
        let Measured { flow_mask, is_v6, with_cache } = measured;
        let constants = [
            ("measured_flow_mask", flow_mask),
            ("measured_is_v6", is_v6.into()),
            ("measured_with_cache", with_cache.into()),
        ];
        let (mut object, _, filter, cache) = program::load(Some(config), &constants)?;
        let cache = cache.ok_or(ObjectError::Missing("cache_entries"))?;
        ebpf::verify(MEASURE, ebpf::program::<Xdp>(&mut object, MEASURE)?.load())?;
        Ok(FilterRun { object, name: MEASURE, filter, cache })
    }

    /// What becomes of a frame, and the frame then.
    pub fn run(&self, frame: &[u8]) -> io::Result<(Action, Vec<u8>)> {
        const ROOM: usize = 256;
        let mut out = vec![0; frame.len() + ROOM];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let result = self.program()?.test_run(options).map_err(io::Error::other)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value.into(), out))
    }

    /// The time that a repetition takes, over `repetitions`.
    pub fn time(&self, frame: &[u8], repetitions: u32) -> io::Result<Duration> {
        let options =
            TestRunOptions { data_in: Some(frame), repeat: repetitions, ..TestRunOptions::new() };
        Ok(self.program()?.test_run(options).map_err(io::Error::other)?.duration)
    }

    fn program(&self) -> io::Result<&Xdp> {
        let program = self.object.program(self.name).and_then(|program| program.try_into().ok());
        program.ok_or_else(|| io::Error::other("the object lacks the filter"))
    }
}
