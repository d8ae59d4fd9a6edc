//! Messages and descriptors over a unix socket.
//!
//! ```text
//!  length of the message | number of descriptors | message as JSON | a byte with up to 64 descriptors | ...
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::PLAN_BYTES_MAX;

/// Of one byte; the kernel allows 253.
const DESCRIPTORS_MAX: usize = 64;

/// A conversation.
pub struct Channel {
    stream: UnixStream,
}

impl Channel {
    /// Over a connected socket.
    pub fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Channel { stream })
    }

    /// Says something, and hands descriptors over.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let message = serde_json::to_vec(message)?;
        let lengths = [message.len() as u32, descriptors.len() as u32].map(u32::to_ne_bytes);
        // At once: who ends in between has said nothing.
        self.stream.write_all(&[&lengths.concat()[..], &message].concat())?;
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fits = control.push(SendAncillaryMessage::ScmRights(some));
            assert!(fits, "the space is for as many");
            // A child that ends interrupts a call that has a timeout.
            retry_on_intr(|| {
                sendmsg(&self.stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
            })?;
        }
        Ok(())
    }

    /// What the other end says next, if it does so in time.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        self.stream.set_read_timeout(Some(timeout))?;
        let heard = self.read();
        heard.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it said nothing for {} s", timeout.as_secs_f64()),
            ),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended, or hung up")
            }
            _ => error,
        })
    }

    fn read<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut length = || -> io::Result<usize> {
            let mut word = [0; 4];
            self.stream.read_exact(&mut word)?;
            Ok(u32::from_ne_bytes(word) as usize)
        };
        let (bytes, count) = (length()?, length()?);
        if bytes > PLAN_BYTES_MAX {
            return Err(io::Error::other(format!("a message of {bytes} bytes is none of ours")));
        }
        let mut message = vec![0; bytes];
        self.stream.read_exact(&mut message)?;
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            self.read_descriptors(&mut descriptors)?;
        }
        Ok((serde_json::from_slice(&message)?, descriptors))
    }

    fn read_descriptors(&self, descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| {
            recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
        })?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = descriptors.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        match descriptors.len() > before {
            true => Ok(()),
            // The kernel drops what a process may not have.
            false => Err(io::Error::other("descriptors got lost: raise the limit (LimitNOFILE=)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fd::AsFd;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a).unwrap(), Channel::new(b).unwrap())
    }

    #[test]
    fn messages_arrive_with_all_their_descriptors_in_order() {
        let (mut a, mut b) = pair();
        let folder = tempfile::tempdir().unwrap();
        let file = |number: usize| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, number.to_string()).unwrap();
            File::open(path).unwrap()
        };
        let files: Vec<File> = (0..150).map(file).collect();
        let descriptors: Vec<BorrowedFd> = files.iter().map(AsFd::as_fd).collect();
        a.send(&"many", &descriptors).unwrap();
        a.send(&"none", &[]).unwrap();
        let (text, received): (String, _) = b.receive(Duration::from_secs(5)).unwrap();
        assert_eq!((text.as_str(), received.len()), ("many", 150));
        for (number, descriptor) in received.into_iter().enumerate() {
            let mut text = String::new();
            File::from(descriptor).read_to_string(&mut text).unwrap();
            assert_eq!(text, number.to_string());
        }
        let (text, received): (String, _) = b.receive(Duration::from_secs(5)).unwrap();
        assert_eq!((text.as_str(), received.len()), ("none", 0));
    }

    #[test]
    fn silence_and_an_end_are_told_apart() {
        let (a, mut b) = pair();
        let silence = b.receive::<String>(Duration::from_millis(10)).unwrap_err();
        assert_eq!(silence.kind(), io::ErrorKind::TimedOut);
        drop(a);
        let end = b.receive::<String>(Duration::from_secs(5)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn garbage_is_refused_without_waiting_for_it() {
        let (mut a, mut b) = pair();
        a.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = b.receive::<String>(Duration::from_secs(5)).unwrap_err().to_string();
        assert!(error.contains("none of ours"), "{error}");
    }
}
