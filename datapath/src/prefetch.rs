//! Prefetches memory before it is needed, so that a batch waits for many cache misses at once
//! instead of for each in turn.
//!
//! A prefetch hint has no effect that a program can see. This is the only file outside the
//! drivers with unsafe code, because the compiler has no safe function for the hint.
#![allow(unsafe_code, reason = "a hint to the processor that has no safe name")]

/// Prefetches the cache line that `place` begins in.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    prefetch_at((std::slice::from_ref(place), 0));
}

/// Prefetches the cache line that element `index` of `places` begins in, or
/// would begin in: what is no element does no harm, so there is no check.
#[inline(always)]
pub fn prefetch_at<T>((places, index): (&[T], usize)) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: needed because the intrinsic takes a raw pointer. It may be
        // given any address, and reads nothing there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(places.as_ptr().wrapping_add(index).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (places, index);
}
