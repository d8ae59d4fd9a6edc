//! Every limit, its arithmetic, and what happens when it is reached.

/// Worker threads. One bit each in the sets of acknowledgements (u64).
/// More queues than this: refused at start.
pub const WORKERS_MAX: usize = 64;

/// The least that `tunnel.mtu` may be: what every host takes of IPv4 (RFC 791). Less: the
/// plan is refused.
pub const TUNNEL_MTU_MIN: u16 = 576;

/// Services of a plan. Ids fit the 14 bits a connection table entry has for
/// them (16,384), with room for ids still held by entries of removed ones.
/// More: the plan is refused.
pub const SERVICES_MAX: usize = 10_000;

/// Service ids there are: 2^14.
pub const SERVICE_IDS: usize = 1 << 14;

/// Backends of a plan over all services. Ids fit 16 bits without zero, with
/// some room for ids still held by entries of removed ones.
/// More: the plan is refused.
pub const BACKENDS_MAX: usize = 65_000;

/// Backend ids there are: 2^16 less the zero that marks an empty entry.
pub const BACKEND_IDS: usize = (1 << 16) - 1;

/// Entries of the largest Maglev table: two bytes each, so 1.3 MB.
/// A larger one is refused.
pub const TABLE_SIZE_MAX: u32 = 655_373;

/// Entries of a table unless the service says otherwise (paper 5.3).
pub const TABLE_SIZE_DEFAULT: u32 = 65_537;

/// Bytes of all distinct tables of a plan: tables x size x 2. With the
/// default size this is 8,192 distinct sets of members; more: the plan is
/// refused, and the message names the sum.
pub const TABLE_BYTES_MAX: u64 = 1 << 30;

/// Buckets of a stateless service: powers of two within these. With fewer,
/// shares are coarse; the low bits of a timestamp have room for 13 bits.
/// Others: the plan is refused.
pub const BUCKETS_MIN: usize = 256;
/// The most.
pub const BUCKETS_MAX: usize = 8192;

/// Earlier tables of a group. For each a table is built when the group changes,
/// which takes a millisecond or less; what is held is only where they differ.
/// More: the plan is refused; the controller leaves out the oldest.
pub const EARLIER_TABLES_MAX: usize = 8;

/// A member's weight. Shares finer than 1 in 1,000 are lost in a table of
/// 65,537 entries anyway. Larger: the plan is refused.
pub const WEIGHT_MAX: u32 = 1_000;

/// Port ranges and VIPs of a plan, together: the counters of each are 16
/// bytes per worker, so 16 MB per worker at most. More: the plan is refused.
pub const MATCHES_MAX: usize = 1_000_000;

/// Connections that a machine tracks: 16 bytes each, so 4 GiB, and up to twice
/// that because every worker's table is rounded up to a power of two.
/// More: the plan is refused.
pub const CONNECTIONS_MAX: u64 = 1 << 28;

/// The longest idle timeouts in milliseconds that the ten bits of time in a
/// connection table entry can distinguish from the wrap (see `datapath::table`).
/// Longer: the plan is refused.
pub const ESTABLISHED_IDLE_MS_MAX: u32 = 7_200_000;
/// The same for unconfirmed entries.
pub const UNCONFIRMED_IDLE_MS_MAX: u32 = 90_000;
/// The same for closing entries.
pub const CLOSING_IDLE_MS_MAX: u32 = 600_000;
