//! The cluster's secret, and the keys derived from it, one for each purpose.

use sha2::{Digest, Sha256};

/// What the hash key comes from.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(SecretKind);

#[derive(Clone, PartialEq, Eq)]
enum SecretKind {
    File(Vec<u8>),
    Derived(String),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({})", self.key_id())
    }
}

impl Secret {
    /// Bytes a secret has at least.
    pub const BYTES_MIN: usize = 16;

    /// The content of a secret file, white space at its end cut off; None if
    /// fewer than [`Secret::BYTES_MIN`] bytes remain.
    #[must_use]
    pub fn from_file_content(content: &[u8]) -> Option<Secret> {
        // Space, \t, \n, \x0c and \r; the controller cuts the same (TrimSecret).
        let secret = content.trim_ascii_end();
        (secret.len() >= Secret::BYTES_MIN).then(|| Secret(SecretKind::File(secret.to_vec())))
    }

    /// For a cluster without a secret: no protection against those who
    /// knows its name.
    #[must_use]
    pub fn derived(cluster: &str) -> Secret {
        Secret(SecretKind::Derived(cluster.to_owned()))
    }

    /// The key id that plans name: `derived`, or eight bytes of a digest in
    /// hex.
    #[must_use]
    pub fn key_id(&self) -> String {
        match &self.0 {
            SecretKind::Derived(_) => "derived".to_owned(),
            SecretKind::File(secret) => {
                let digest = Sha256::new()
                    .chain_update(b"guideway key id\0")
                    .chain_update(secret)
                    .finalize();
                digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }

    /// The key that marks of traced packets are signed with; None without a
    /// secret file, as the key would be public then.
    #[must_use]
    pub fn trace_key(&self) -> Option<[u8; 32]> {
        match &self.0 {
            SecretKind::Derived(_) => None,
            SecretKind::File(secret) => Some(
                Sha256::new()
                    .chain_update(b"guideway trace\0")
                    .chain_update(secret)
                    .finalize()
                    .into(),
            ),
        }
    }

    /// The key of QUIC connection ids of a config; backends have it, too.
    #[must_use]
    pub fn connection_id_key(&self, config_id: u8) -> [u8; 16] {
        self.hash_key(&[b"guideway quic connection id\0".as_slice(), &[config_id, 0]].concat())
    }

    pub(crate) fn hash_key(&self, purpose: &[u8]) -> [u8; 16] {
        let hasher = Sha256::new().chain_update(purpose);
        let digest = match &self.0 {
            SecretKind::Derived(cluster) => {
                hasher.chain_update(b"derived\0").chain_update(cluster).finalize()
            }
            SecretKind::File(secret) => {
                hasher.chain_update(b"secret\0").chain_update(secret).finalize()
            }
        };
        *digest.first_chunk().expect("a digest has 32 bytes")
    }
}
