//! Compares the filter in front of the decision with the decision, over every entry, state of
//! its backend, protocol and flag.

use std::sync::Arc;

use datapath::counters::ConnectionCounters;
use datapath::decide::{Decision, Effect, Known, Route, Rules, Why, choose, steady_member};
use datapath::table::{Entry, Expiry, Lifetimes, Ticks, steady_backend};
use datapath::{ConnectionTable, EntryClass, Now};
use plan::{BackendId, Plan, Planner, Service};
use serde_json::json;
use wire::{Family, PacketMeta, Protocol, tcp};

const HASH: u64 = 0x1234_5678_9abc_def0;

/// A service with backends in every state.
fn plan() -> Plan {
    const STATES: [&str; 4] = ["ACTIVE", "DRAINING", "DOWN", "DISABLED"];
    let member =
        |state| json!({"backend": state, "weight": 1, "state": format!("BACKEND_STATE_{state}")});
    let message = json!({
        "generation": "1",
        "machine": {"name": "lb-1", "addresses": ["10.0.0.1"]},
        "backends": STATES.map(|state| json!({"name": state, "address": "10.1.0.1"})),
        "groups": [{"name": "web", "members": STATES.map(member)}],
        "services": [{
            "name": "web",
            "vips": [{"address": "203.0.113.10"}],
            "group": "web",
            "onDown": "ON_DOWN_KEEP",
        }],
    });
    Planner::default().plan(serde_json::from_value(message).unwrap()).unwrap()
}

fn meta(protocol: Protocol, flags: u8) -> PacketMeta {
    let tcp_flags = tcp::Flags(flags);
    PacketMeta { family: Family::V4, protocol, tcp_flags, traffic_class: 0, packet_bytes: 40 }
}

/// A connection table with one entry.
struct OneEntry {
    table: ConnectionTable<'static>,
    lifetimes: Lifetimes,
    ticks: Ticks,
    plan: Arc<Plan>,
}

impl OneEntry {
    fn new() -> OneEntry {
        let plan = Arc::new(plan());
        let one = OneEntry {
            table: ConnectionTable::in_memory(4).0,
            lifetimes: Lifetimes::new(&plan),
            ticks: Ticks::new(Now(1_234_567_890)),
            plan,
        };
        let entry = Entry { service: one.service().id, ..ANY };
        let counters = ConnectionCounters::default();
        one.table.insert(HASH, None, entry, 1, &one.expiry(), &counters);
        one
    }

    fn service(&self) -> &Service {
        self.plan.services().next().unwrap()
    }

    fn expiry(&self) -> Expiry<'_> {
        Expiry { lifetimes: &self.lifetimes, ticks: &self.ticks }
    }

    fn set(&self, entry: Entry) {
        let found = self.table.find(HASH, entry.service).expect("the entry is there");
        self.table.update(&found, HASH, entry);
    }

    /// What the filter answers where the entry was found; where it is looked for at home
    /// the same, but nothing of a connection that is not confirmed.
    fn filtered(&self, meta: &PacketMeta) -> Option<Decision> {
        let (service, is_tcp) = (self.service(), meta.protocol == Protocol::TCP);
        let home = self.table.home(HASH);
        let at_home = steady_member(&service.group, meta, || {
            steady_backend(home, HASH, service.id, &self.ticks, is_tcp)
        });
        let found = steady_member(&service.group, meta, || {
            let found = self.table.find(HASH, service.id)?;
            Some(found.unchanged_by_data(&self.ticks, is_tcp)?.backend)
        });
        let entry = self.table.find(HASH, service.id).map(|found| found.entry());
        let is_unconfirmed = entry.is_some_and(|entry| entry.class == EntryClass::Unconfirmed);
        assert_eq!(at_home, found.filter(|_| !is_unconfirmed));
        let decision = |chosen| Decision {
            chosen: Some(chosen),
            why: Why::Tracked,
            slot: None,
            route: Route::None,
            effect: Effect::None,
        };
        found.map(decision)
    }

    fn decided(&self, meta: &PacketMeta) -> Decision {
        let service = self.service();
        let rules = Rules {
            service: service.id,
            tracking: service.tracking,
            group: &service.group,
            expiry: self.expiry(),
        };
        let entry = self.table.find(HASH, service.id).map(|found| found.entry());
        choose(&rules, &mut Known { entry, ..Known::selector(meta.into(), HASH) })
    }
}

const ANY: Entry = Entry {
    service: plan::ServiceId(0),
    backend: BackendId(1),
    class: EntryClass::Unconfirmed,
    time: 0,
};

#[test]
fn the_filter_answers_as_the_decision_or_not_at_all() {
    let one = OneEntry::new();
    let backends: Vec<BackendId> =
        one.service().group.members().iter().map(|member| member.backend).collect();
    let unknown = BackendId(999);
    let mut answered = 0;
    for class in [
        EntryClass::Unconfirmed,
        EntryClass::Established,
        EntryClass::Datagram,
        EntryClass::Closing,
        EntryClass::Reset,
    ] {
        let times = if class >= EntryClass::Closing { 512 } else { 1024 };
        for time in 0..times {
            for backend in backends.iter().copied().chain([unknown]) {
                one.set(Entry { service: one.service().id, backend, class, time });
                for protocol in [Protocol::TCP, Protocol::UDP] {
                    for flags in 0..=u8::MAX {
                        let meta = meta(protocol, flags);
                        let Some(decision) = one.filtered(&meta) else { continue };
                        assert_eq!(decision, one.decided(&meta), "{class:?} {time} {meta:?}");
                        answered += 1;
                    }
                }
            }
        }
    }
    // TCP's established and unconfirmed, and the other protocol's; in one tick of 1,024, of
    // three backends, with 32 sets of flags that are no signals.
    assert_eq!(answered, 3 * 3 * 32);
}
