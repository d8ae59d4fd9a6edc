//! Capture files: reading pcap and pcapng, writing pcap.
//!
//! Reads classic pcap (microseconds and nanoseconds, both byte orders) and
//! pcapng (several sections, each with its byte order; several interfaces,
//! each with its clock). Ethernet only. Every error names the offset in the
//! file. A length that lies costs no memory: what is not in the file is not
//! allocated.
//!
//! Our own because `pcap-file` 2.0 reads every pcapng clock as nanoseconds,
//! 3.0 is a release candidate, and neither says where a file is broken.

mod classic;
mod ng;
mod source;
mod writer;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use source::Source;
pub use writer::Writer;

/// LINKTYPE_ETHERNET of the tcpdump group's registry.
const LINKTYPE_ETHERNET: u16 = 1;

/// The longest record or block that is accepted. libpcap's own limit for a
/// packet is 256 KiB; blocks of other kinds (decryption secrets, name
/// resolution) are skipped whole and may be longer.
const RECORD_BYTES_MAX: u32 = 16 << 20;

/// One captured packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970. A pcapng simple packet has no time of its own
    /// and takes that of the packet before it.
    pub timestamp_ns: u64,
    /// Length on the wire; larger than `bytes.len()` if the capture cut it.
    pub original_len: u32,
    /// What was captured, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem} (at byte {offset})", .path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default())]
pub struct Error {
    /// The file, if it was opened by name.
    pub path: Option<PathBuf>,
    /// Offset of the header, record or block that is wrong.
    pub offset: u64,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What can be wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Neither pcap nor pcapng.
    #[error("not a pcap or pcapng file: it begins with {0:08x}")]
    NotACapture(u32),
    /// A file of no bytes, as an interrupted capture leaves behind.
    #[error("the file is empty")]
    Empty,
    /// The file ends too early.
    #[error("the file ends inside {0}: it was cut off")]
    Truncated(&'static str),
    /// A packet that is not Ethernet.
    #[error(
        "link type {0} is not supported, only Ethernet (1): capture on an Ethernet interface, not on `any`"
    )]
    LinkType(u16),
    /// A version that we do not know.
    #[error("{format} version {major}.{minor} is not known")]
    Version {
        /// "pcap" or "pcapng".
        format: &'static str,
        /// Major version found.
        major: u16,
        /// Minor version found.
        minor: u16,
    },
    /// A length that contradicts itself or its surroundings.
    #[error("{what} of {len} bytes cannot be: the file is damaged")]
    Length {
        /// The field.
        what: &'static str,
        /// Its value.
        len: u64,
    },
    /// A packet of an interface that no block described.
    #[error("packet of interface {0}, which the file does not describe")]
    UnknownInterface(u32),
    /// A clock finer than any clock is.
    #[error("if_tsresol {0:#04x} cannot be: the file is damaged")]
    Resolution(u8),
    /// A section whose byte order mark is neither way round.
    #[error("byte order magic {0:08x} cannot be: the file is damaged")]
    ByteOrder(u32),
    /// The file cannot be read.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
}

/// Reads a capture, one packet after the other.
pub struct Reader<R> {
    source: Source<R>,
    format: Format,
    path: Option<PathBuf>,
    failed: bool,
}

enum Format {
    Classic(classic::Header),
    Ng(ng::Section),
}

impl Reader<BufReader<File>> {
    /// Opens a file and reads its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let opened = File::open(&path).map_err(|error| (0, Problem::Io(error)));
        opened
            .and_then(|file| Reader::begin(BufReader::new(file)))
            .map(|reader| Reader { path: Some(path.clone()), ..reader })
            .map_err(|(offset, problem)| Error { path: Some(path), offset, problem })
    }
}

impl<R: Read> Reader<R> {
    /// Reads from anything; `input` should be buffered.
    pub fn new(input: R) -> Result<Self, Error> {
        Reader::begin(input).map_err(|(offset, problem)| Error { path: None, offset, problem })
    }

    fn begin(input: R) -> Result<Self, (u64, Problem)> {
        let mut source = Source::new(input);
        let format = Format::detect(&mut source).map_err(|problem| (0, problem))?;
        Ok(Reader { source, format, path: None, failed: false })
    }
}

impl Format {
    fn detect<R: Read>(source: &mut Source<R>) -> Result<Format, Problem> {
        let Some(magic) = source.array_or_end("the first four bytes")? else {
            return Err(Problem::Empty);
        };
        if u32::from_le_bytes(magic) == ng::SECTION_HEADER {
            return Ok(Format::Ng(ng::Section::begin(source)?));
        }
        Ok(Format::Classic(classic::Header::begin(magic, source)?))
    }
}

/// After an error nothing more comes: where one length is wrong, none of
/// those that follow can be found.
impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Packet, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let result = match &mut self.format {
            Format::Classic(header) => header.next(&mut self.source),
            Format::Ng(section) => section.next(&mut self.source),
        };
        result
            .map_err(|problem| {
                self.failed = true;
                Error { path: self.path.clone(), offset: self.source.mark(), problem }
            })
            .transpose()
    }
}

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    fn i64(self, bytes: [u8; 8]) -> i64 {
        match self {
            Order::Little => i64::from_le_bytes(bytes),
            Order::Big => i64::from_be_bytes(bytes),
        }
    }
}

#[cfg(test)]
mod tests;
