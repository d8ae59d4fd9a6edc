//! Runs a driver's filter in the kernel without an interface, on given frames
//! (BPF_PROG_TEST_RUN), for tests and measurements.
//!
//! Traps. The kernel runs it on frames with at least an Ethernet header, as if they had arrived
//! on queue 0 of the loopback device. No socket is connected, so our frames are dropped, and
//! with XDP counted as `no_socket`. At traffic control a frame is for the loopback device if it
//! has its Ethernet address, zero, so frames are given that. Each repetition begins with the
//! frame as the previous one left it.

use std::io;
use std::time::Duration;

use aya::Ebpf;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use ebpf::ObjectError;

use crate::drivers::af_packet::program as traffic_control;
use crate::drivers::af_xdp::program::{self as xdp, FILTER};
use crate::filter::Filter;
use crate::kernel_cache::{CacheConfig, CacheMemory};

const MEASURE: &str = "guideway_measure";
const BOTH: &str = "guideway_both";

/// Bytes of an Ethernet address.
const ADDRESS_BYTES: usize = 6;

/// Where a filter is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the interface's driver: that of AF_XDP sockets.
    Xdp,
    /// In traffic control: that of packet sockets, with what it does at these.
    TrafficControl,
}

/// A filter to try.
pub struct FilterRun {
    object: Ebpf,
    hook: Hook,
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

impl Action {
    /// XDP's of linux/bpf.h, and traffic control's of linux/pkt_cls.h.
    fn new(hook: Hook, action: u32) -> Action {
        match (hook, action) {
            (Hook::Xdp, 1) | (Hook::TrafficControl, 2) => Action::Drop,
            (Hook::Xdp, 2) | (Hook::TrafficControl, u32::MAX) => Action::Pass,
            (Hook::Xdp, 3) => Action::Transmit,
            (Hook::Xdp, 4) | (Hook::TrafficControl, 7) => Action::Redirect,
            (_, other) => Action::Other(other),
        }
    }
}

impl FilterRun {
    /// Loads a filter with that cache.
    pub fn load(hook: Hook, config: CacheConfig) -> Result<FilterRun, ObjectError> {
        let (name, (object, filter, cache)) = match hook {
            Hook::Xdp => (FILTER, xdp::load(Some(config), &[])?),
            Hook::TrafficControl => {
                let mut loaded = traffic_control::load(Some(config))?;
                ebpf::load_program(&mut loaded.0, BOTH)?;
                (BOTH, loaded)
            }
        };
        let cache = cache.ok_or(ObjectError::Missing("cache_entries"))?;
        Ok(FilterRun { object, hook, name, filter, cache })
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
        let (mut object, filter, cache) = xdp::load(Some(config), &constants)?;
        let cache = cache.ok_or(ObjectError::Missing("cache_entries"))?;
        ebpf::load_program(&mut object, MEASURE)?;
        Ok(FilterRun { object, hook: Hook::Xdp, name: MEASURE, filter, cache })
    }

    /// What becomes of a frame, and the frame then.
    pub fn run(&self, frame: &[u8]) -> io::Result<(Action, Vec<u8>)> {
        const ROOM: usize = 256;
        let mut out = vec![0; frame.len() + ROOM];
        let mut given = frame.to_vec();
        if self.hook == Hook::TrafficControl {
            given[..ADDRESS_BYTES].fill(0);
        }
        let options = TestRunOptions {
            data_in: Some(&given),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let result = self.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        if out == given {
            out[..ADDRESS_BYTES].copy_from_slice(&frame[..ADDRESS_BYTES]);
        }
        Ok((Action::new(self.hook, result.return_value), out))
    }

    /// The time that a repetition takes, over `repetitions`.
    pub fn time(&self, frame: &[u8], repetitions: u32) -> io::Result<Duration> {
        let options =
            TestRunOptions { data_in: Some(frame), repeat: repetitions, ..TestRunOptions::new() };
        Ok(self.test_run(options)?.duration)
    }

    fn test_run(&self, options: TestRunOptions<'_>) -> io::Result<TestRunResult> {
        let missing = || io::Error::other("the object lacks the filter");
        let program = self.object.program(self.name).ok_or_else(missing)?;
        let result = match self.hook {
            Hook::Xdp => <&Xdp>::try_from(program).map(|xdp| xdp.test_run(options)),
            Hook::TrafficControl => {
                <&SchedClassifier>::try_from(program).map(|classifier| classifier.test_run(options))
            }
        };
        result.map_err(io::Error::other)?.map_err(io::Error::other)
    }
}
