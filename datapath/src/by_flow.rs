//! Why a packet is forwarded by flow although its service has QUIC connection ids.

/// Why a QUIC packet goes by its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByFlow {
    /// It is too short for a connection id, or its connection id for its config.
    TooShort,
    /// The connection id names no server: its maker had no config.
    Unroutable,
    /// The service has no config of that id.
    UnknownConfig,
    /// No backend of the service has that server id: most are of new connections,
    /// whose ids clients draw at random.
    UnknownServer,
    /// The backend does not keep connections.
    Unavailable,
}

impl ByFlow {
    /// How many there are.
    pub const COUNT: usize = ByFlow::ALL.len();
    /// All of them, in the order of their counters.
    pub const ALL: [ByFlow; 5] = [
        ByFlow::TooShort,
        ByFlow::Unroutable,
        ByFlow::UnknownConfig,
        ByFlow::UnknownServer,
        ByFlow::Unavailable,
    ];

    /// Its name in metrics and journeys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ByFlow::TooShort => "too_short",
            ByFlow::Unroutable => "unroutable",
            ByFlow::UnknownConfig => "unknown_config",
            ByFlow::UnknownServer => "unknown_server",
            ByFlow::Unavailable => "unavailable",
        }
    }
}
