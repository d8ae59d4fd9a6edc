//! The cluster's secret, read from its file.

use std::io;
use std::path::{Path, PathBuf};

use datapath::Secret;

/// A secret has some tens of bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not to be read.
    #[error("--secret-file {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// Not the one the plan was made with.
    #[error(
        "the plan was made for the key `{wanted}`, not for `{found}`{of}: give --secret-file the cluster's \
         secret, the file that cluster.secret_file names in the config (the installed units read \
         /etc/guideway/cluster.key; another one: FORWARDER_OPTIONS in /etc/guideway/forwarder.env)"
    )]
    OtherKey {
        /// What the plan names.
        wanted: String,
        /// What there is.
        found: String,
        /// Where that was found.
        of: String,
    },
    /// Too easy to guess.
    #[error(
        "--secret-file {path} holds fewer than {} bytes, not counting white space at the end: \
         make one with `openssl rand -hex 32`",
        Secret::BYTES_MIN
    )]
    Short {
        /// The file.
        path: PathBuf,
    },
}

/// The secret that `plan` was made for: from the file, or derived from the
/// cluster's name.
///
/// # Errors
/// If the plan names another key.
pub fn for_plan(plan: &plan::Plan, path: Option<&Path>) -> Result<Secret, SecretError> {
    for_key(&plan.key_id, &plan.cluster, path)
}

/// The secret with this id: from the file, or, where there is none, derived
/// from the cluster's name. An empty id is that of the file, or of the cluster's name without one.
pub fn for_key(key_id: &str, cluster: &str, path: Option<&Path>) -> Result<Secret, SecretError> {
    let secret = match path {
        Some(path) => read(path)?,
        None => Secret::derived(cluster),
    };
    if key_id.is_empty() || key_id == secret.key_id() {
        return Ok(secret);
    }
    let of = path.map(|path| format!(" of {}", path.display())).unwrap_or_default();
    Err(SecretError::OtherKey { wanted: key_id.to_owned(), found: secret.key_id(), of })
}

/// The file's secret; None without a file.
///
/// # Errors
/// If there is a file that cannot be used.
pub fn read_if_there(path: Option<&Path>) -> Result<Option<Secret>, SecretError> {
    match path.map(read).transpose() {
        Err(SecretError::Unreadable { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        other => other,
    }
}

/// Names the file's secret; `derived` where there is none to be had.
#[must_use]
pub fn key_id_of(path: Option<&Path>) -> String {
    let secret = read_if_there(path).ok().flatten();
    secret.map_or_else(|| "derived".to_owned(), |secret| secret.key_id())
}

/// Reads the file, the same way as the controller does.
pub fn read(path: &Path) -> Result<Secret, SecretError> {
    let content = nic::folder::read_named(path, BYTES_MAX)
        .map_err(|error| SecretError::Unreadable { path: path.to_owned(), error })?;
    Secret::from_file_content(&content).ok_or_else(|| SecretError::Short { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_is_a_named_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = read(&path).unwrap_err().to_string();
        assert!(error.ends_with("key: is a named pipe: name a regular file"), "{error}");
    }

    #[test]
    fn a_short_or_missing_secret_names_file_and_cure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(read(&path), Err(SecretError::Unreadable { .. })));
        std::fs::write(&path, "short\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("key") && error.contains("16 bytes") && error.contains("openssl"),
            "{error}"
        );
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_ne!(read(&path).unwrap().key_id(), "derived");
    }
}
