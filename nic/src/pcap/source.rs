//! The file as a stream that knows where it is.

use std::io::{self, Read};

use super::Problem;

/// Reads exactly or says what was cut off; remembers where the current record
/// began, for error messages.
pub(super) struct Source<R> {
    input: R,
    offset: u64,
    mark: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        Source { input, offset: 0, mark: 0 }
    }

    /// The record that begins here is what errors will point at.
    pub(super) fn begin_record(&mut self) {
        self.mark = self.offset;
    }

    /// Where the current record began.
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// The next `N` bytes, which are part of `what`.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Problem> {
        self.array_or_end(what)?.ok_or(Problem::Truncated(what))
    }

    /// The next `N` bytes, or None where the file ends before the first.
    pub(super) fn array_or_end<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<Option<[u8; N]>, Problem> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Problem::Truncated(what)),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.offset += N as u64;
        Ok(Some(bytes))
    }

    /// The next `len` bytes. Memory grows with what the file really has.
    pub(super) fn bytes(&mut self, len: u32, what: &'static str) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(u64::from(len)).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        if bytes.len() < len as usize {
            return Err(Problem::Truncated(what));
        }
        Ok(bytes)
    }

    /// Passes over `len` bytes.
    pub(super) fn skip(&mut self, len: u32, what: &'static str) -> Result<(), Problem> {
        let skipped = io::copy(&mut self.input.by_ref().take(u64::from(len)), &mut io::sink())?;
        self.offset += skipped;
        if skipped < u64::from(len) {
            return Err(Problem::Truncated(what));
        }
        Ok(())
    }
}
