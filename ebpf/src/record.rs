//! Entries shared by both sides of a table: a struct here, and one in C.

use aya::Pod;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A key or a value of a program's table, as the program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Record<T>(pub T);

// SAFETY: zerocopy's derives prove that any bytes are a value of T, and that none of its bytes
// is padding, which would be memory that was never written.
unsafe impl<T> Pod for Record<T> where T: FromBytes + IntoBytes + Immutable + Copy + 'static {}
