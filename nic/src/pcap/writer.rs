//! Writes classic pcap: microseconds, little-endian, Ethernet.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::LINKTYPE_ETHERNET;

/// The longest packet kept; the field that says so is the common one of
/// capture tools, so that any reader takes our files.
const SNAP_BYTES: u32 = 65_535;

/// Writes packets to a capture. Call [`Writer::finish`] at the end: dropping
/// hides the error of a full disk.
pub struct Writer<W: Write> {
    output: W,
}

impl Writer<BufWriter<File>> {
    /// Creates (or empties) a file; errors name it.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display()))
        };
        Writer::new(BufWriter::new(File::create(path).map_err(named)?))
    }
}

impl<W: Write> Writer<W> {
    /// Writes the file's header; `output` should be buffered.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(&0xa1b2_c3d4_u32.to_le_bytes())?;
        output.write_all(&2_u16.to_le_bytes())?;
        output.write_all(&4_u16.to_le_bytes())?;
        // Time zone and accuracy of timestamps: zero in every file there is.
        output.write_all(&[0; 8])?;
        output.write_all(&SNAP_BYTES.to_le_bytes())?;
        output.write_all(&u32::from(LINKTYPE_ETHERNET).to_le_bytes())?;
        Ok(Writer { output })
    }

    /// Adds a packet. The format counts whole microseconds, and seconds until
    /// the year 2106: a later time is an error.
    pub fn write(&mut self, timestamp_ns: u64, original_len: u32, bytes: &[u8]) -> io::Result<()> {
        let seconds = u32::try_from(timestamp_ns / 1_000_000_000).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "a pcap file holds times until 2106 only")
        })?;
        let microseconds = (timestamp_ns % 1_000_000_000 / 1000) as u32;
        let kept = &bytes[..bytes.len().min(SNAP_BYTES as usize)];
        for field in [seconds, microseconds, kept.len() as u32, original_len] {
            self.output.write_all(&field.to_le_bytes())?;
        }
        self.output.write_all(kept)
    }

    /// Flushes, and gives the output back.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}
