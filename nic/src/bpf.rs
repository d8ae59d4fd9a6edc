//! What the loaders of kernel-side programs share: telling errors.

use std::error::Error;

/// An error with all its causes, which aya's own text leaves out.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
