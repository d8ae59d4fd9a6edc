//! Records one packet's journey, for `explain`, `trace`, `capture` and `replay --journeys`. For
//! packets that are not recorded it costs nothing: with [`NoRecorder`] every call compiles to
//! nothing.

use plan::{BackendId, Matched};
use wire::FlowKey;

use crate::by_flow::ByFlow;
use crate::multipath::Selection;

/// Is told what each stage found.
pub trait Recorder {
    /// The five-tuple.
    fn parsed(&mut self, _key: &FlowKey) {}
    /// The service that has the packet's address and port.
    fn matched(&mut self, _matched: Matched) {}
    /// The flow hash.
    fn hashed(&mut self, _flow: u64) {}
    /// What selects: the flow hash, or the client's, or a stateless service's.
    fn selects(&mut self, _selector: u64) {}
    /// Whether the connection table decided.
    fn tracked(&mut self, _lookup: Lookup) {}
    /// Whether a QUIC connection id decided, and why not.
    fn connection_id(&mut self, _named: Result<(), ByFlow>) {}
    /// What selects at a service with Multipath TCP.
    fn multipath(&mut self, _selection: Selection) {}
    /// The selector's slot: the Maglev table's, or the bucket.
    fn selected(&mut self, _slot: u32) {}
    /// The packet names the backends that earlier tables had for it.
    fn second_chance(&mut self) {}
    /// The backend, tracked or selected.
    fn backend(&mut self, _backend: BackendId) {}
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRecorder;

impl Recorder for NoRecorder {}

/// What the connection table said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lookup {
    /// It was not asked.
    #[default]
    None,
    /// An entry decided.
    Hit,
    /// No entry that could decide.
    Miss,
}

impl Lookup {
    /// The name in journeys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lookup::None => "none",
            Lookup::Hit => "hit",
            Lookup::Miss => "miss",
        }
    }
}

/// The trace of one packet.
#[derive(Debug, Clone, Default)]
pub struct Journey {
    /// The five-tuple.
    pub key: Option<FlowKey>,
    /// The service, and by which match.
    pub matched: Option<Matched>,
    /// The flow hash.
    pub hash: Option<u64>,
    /// What selects: the flow hash, or the client's. None: nothing was selected.
    pub selector: Option<u64>,
    /// What the connection table said.
    pub lookup: Lookup,
    /// Whether a QUIC connection id decided, and why not; None: the service or the
    /// packet has none.
    pub connection_id: Option<Result<(), ByFlow>>,
    /// What selects at a service with Multipath TCP.
    pub multipath: Option<Selection>,
    /// The Maglev table's slot, where it was asked.
    pub slot: Option<u32>,
    /// The packet names the backends that earlier tables had for it.
    pub second_chance: bool,
    /// The backend.
    pub backend: Option<BackendId>,
}

impl Recorder for Journey {
    fn parsed(&mut self, key: &FlowKey) {
        self.key = Some(*key);
    }
    fn matched(&mut self, matched: Matched) {
        self.matched = Some(matched);
    }
    fn hashed(&mut self, flow: u64) {
        self.hash = Some(flow);
    }
    fn selects(&mut self, selector: u64) {
        self.selector = Some(selector);
    }
    fn tracked(&mut self, lookup: Lookup) {
        self.lookup = lookup;
    }
    fn connection_id(&mut self, named: Result<(), ByFlow>) {
        self.connection_id = Some(named);
    }
    fn multipath(&mut self, selection: Selection) {
        self.multipath = Some(selection);
    }
    fn selected(&mut self, slot: u32) {
        self.slot = Some(slot);
    }
    fn second_chance(&mut self) {
        self.second_chance = true;
    }
    fn backend(&mut self, backend: BackendId) {
        self.backend = Some(backend);
    }
}
