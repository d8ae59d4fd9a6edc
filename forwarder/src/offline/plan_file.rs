//! Plans as files.

use std::io;
use std::path::Path;

use plan::{Plan, Planner};

/// What can go wrong with a plan file.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// Not to be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        error: io::Error,
    },
    /// Not a Plan as proto JSON.
    #[error("{path}: not a plan: {error}")]
    NotJson {
        /// The file.
        path: String,
        /// Line and column, and what was expected.
        error: serde_json::Error,
    },
    /// A Plan that is refused.
    #[error("{path}: {error}")]
    Refused {
        /// The file.
        path: String,
        /// The field and its problem.
        error: plan::PlanError,
    },
}

/// Reads and decodes a plan file.
pub fn read_plan(planner: &mut Planner, path: &Path) -> Result<Plan, PlanFileError> {
    let name = || path.display().to_string();
    let bytes =
        std::fs::read(path).map_err(|error| PlanFileError::Unreadable { path: name(), error })?;
    let message = serde_json::from_slice(&bytes)
        .map_err(|error| PlanFileError::NotJson { path: name(), error })?;
    planner.plan(message).map_err(|error| PlanFileError::Refused { path: name(), error })
}
