//! Sends frames as a driver delivers them, made by the kernel itself, for measurements in the
//! receiving driver: sockets are too slow a sender.
//!
//! `live_sender INTERFACE MAC ADDRESS FLOWS` sends TCP segments of 60 bytes to that address, of
//! FLOWS flows in turn (a power of two; 0: each is a SYN of another flow). It prints `ready`.
//! Each line on its standard input is a number of frames to send; it answers with the number of
//! frames that have come back since it began, and the nanoseconds that sending took. Frames
//! that come back end here.

use std::error::Error;
use std::io::{self, BufRead};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use ebpf::Link;
use ebpf::xdp::ModePreference;
use wire::MacAddress;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/live.bpf.o"));
const SEND: &str = "guideway_send";
const COUNT: &str = "guideway_count";

/// The shortest that Ethernet allows, without its checksum.
const FRAME_BYTES: usize = 60;
/// Of one call of the driver.
const BATCH: u32 = 64;
const PORT: u16 = 80;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("live_sender: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [interface, mac, address, flows] = arguments else {
        return Err("usage: live_sender INTERFACE MAC ADDRESS FLOWS".into());
    };
    let mut sender = LiveSender::new(interface, mac, address.parse()?, flows.parse()?)?;
    println!("ready");
    for line in io::stdin().lock().lines() {
        let taken = sender.send(line?.parse()?)?;
        println!("{} {}", sender.returned()?, taken.as_nanos());
    }
    Ok(())
}

struct LiveSender {
    object: Ebpf,
    returned: PerCpuArray<MapData, u64>,
    _link: Link,
}

impl LiveSender {
    fn new(
        interface: &str,
        mac: &str,
        address: Ipv4Addr,
        flows: u32,
    ) -> Result<LiveSender, Box<dyn Error>> {
        if flows != 0 && !flows.is_power_of_two() {
            return Err(format!("{flows} flows: only a power of two, or 0").into());
        }
        let found = nic::Interface::find(interface)?;
        let frame = frame(found.mac, mac.parse()?, address);
        let mut object = ebpf::load_with(OBJECT, |loader| {
            loader
                .override_global("first_frame", &frame[..], true)
                .override_global("interface_index", &found.index, true)
                .override_global("flows", &flows, true);
        })?;
        ebpf::load_program(&mut object, SEND)?;
        ebpf::load_program(&mut object, COUNT)?;
        let program = ebpf::program_fd(&object, COUNT)?;
        let (link, _) = ebpf::xdp::attach(program, interface, found.index, ModePreference::Native)?;
        let returned = ebpf::table(&mut object, "returned")?;
        Ok(LiveSender { object, returned, _link: link })
    }

    fn send(&mut self, frames: u32) -> Result<Duration, Box<dyn Error>> {
        let program: &mut Xdp = ebpf::program(&mut self.object, SEND)?;
        let options = TestRunOptions {
            data_in: Some(&[0; FRAME_BYTES]),
            repeat: frames,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::new()
        };
        let start = Instant::now();
        program.test_run(options)?;
        Ok(start.elapsed())
    }

    fn returned(&self) -> Result<u64, String> {
        let [returned] = ebpf::sums(&self.returned)?;
        Ok(returned)
    }
}

/// A segment without source and flags: its checksum is the sum of the rest. TCP's is left out.
fn frame(from: MacAddress, to: MacAddress, address: Ipv4Addr) -> [u8; FRAME_BYTES] {
    const IP: usize = 14;
    const TCP: usize = IP + 20;
    let mut frame = [0; FRAME_BYTES];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[IP + 2..IP + 4].copy_from_slice(&((FRAME_BYTES - IP) as u16).to_be_bytes());
    (frame[IP + 8], frame[IP + 9]) = (64, 6);
    frame[IP + 16..TCP].copy_from_slice(&address.octets());
    let sum = !wire::checksum::finish(wire::checksum::sum(&frame[IP..TCP]));
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    frame[TCP + 2..TCP + 4].copy_from_slice(&PORT.to_be_bytes());
    frame[TCP + 12] = 5 << 4;
    frame
}
