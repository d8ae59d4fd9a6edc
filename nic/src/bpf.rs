//! What the loaders of kernel-side programs share: telling errors.

use std::error::Error;
use std::io;

/// The system's error code somewhere below an error.
pub(crate) fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
}

/// An error with all its causes, which aya's own text leaves out.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
