//! Services: how their packets are forwarded.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use wire::ip::{self, AddressBits};
use wire::tunnel::{self, route_option};
use wire::{Encap, Family};

use super::buckets::{by_bucket, open_moves};
use super::counting::Counted;
use super::groups::{
    EarlierKey, GroupKey, GroupUse, MemberGroup, MemberKey, SelectorKey, admission,
};
use super::vips::ports;
use super::{Decoding, PlanError, quic_lb, refuse};
use crate::group::Group;
use crate::ids::{BackendId, ServiceId};
use crate::matching::{AddressInfo, Matched, low_mask};
use crate::quic_lb::QuicLb;
use crate::select::maglev;
use crate::service::{
    Affinity, Dscp, L2, SecondChance, Service, SpillTo, Timeouts, Tracking, TunnelProfile,
};
use crate::text::parse_prefix;
use crate::{limits, proto};

impl<'m> Decoding<'m, '_> {
    pub(super) fn service(
        &mut self,
        index: usize,
        message: &'m proto::Service,
        id: ServiceId,
        counted: Counted,
    ) -> Result<(), PlanError> {
        let path = format!("services[{index}]");
        let info = AddressInfo {
            unmatched_pass: message.unmatched() == proto::Unmatched::Pass,
            fragments: match message.fragments() {
                proto::Fragments::On => true,
                proto::Fragments::Off => false,
                proto::Fragments::Auto => self.peers.is_empty(),
            },
        };
        let tracking = tracking(&path, message)?;
        let second_chance = second_chance(&path, message)?;
        let group = match tracking.is_stateless() {
            false => self.members(&path, message)?,
            true => self.members_by_bucket(&path, message)?,
        };
        let service = Service {
            id,
            tracking,
            quic_lb: self.quic_lb(&path, message)?,
            name: message.name.clone(),
            first_member: counted.first_member,
            affinity: affinity(message),
            tunnel: TunnelProfile {
                encap: encap(&path, message)?,
                dscp: dscp(&path, message.dscp)?,
                option_bytes: option_bytes(tracking, second_chance),
            },
            timeouts: timeouts(&path, message.idle_timeouts.unwrap_or_default())?,
            // Zero is none; more than are counted is none, too.
            quota: match message.connections_quota {
                0 => u32::MAX,
                quota => quota.try_into().unwrap_or(u32::MAX),
            },
            spill: spill(&path, message)?,
            group,
            second_chance,
        };
        let mut vips = Vec::new();
        for (at, vip) in message.vips.iter().enumerate() {
            let path = format!("{path}.vips[{at}]");
            let ports = ports(&path, vip)?;
            vips.push((path, vip, ports));
        }
        let matched = Matched {
            service: id,
            listed: index as u16,
            profile: self.profile(service.tunnel),
            matched: 0,
            first_member: counted.first_member,
            group: self.group(&service.group),
            tracking,
            alone: counted.alone
                && message.join_ports.is_empty()
                && vips.iter().map(|(_, _, ports)| ports.len()).sum::<usize>() == 1,
        };
        for ((path, vip, ports), index) in vips.into_iter().zip(0..) {
            self.vip(&path, (index, vip), ports, matched, info)?;
        }
        self.join_ports(&path, message, matched, info)?;
        self.services.push(service);
        Ok(())
    }

    /// The connection ids that name its members.
    fn quic_lb(&self, path: &str, message: &proto::Service) -> Result<Option<QuicLb>, PlanError> {
        let group = &self.member_groups.groups[self.member_groups.of(path, message)?];
        let given = message.quic_lb.as_ref();
        given.map(|given| quic_lb::quic_lb(path, given, &group.members)).transpose()
    }

    /// The index of that way to encapsulate. There are fewer than 400.
    fn profile(&mut self, tunnel: TunnelProfile) -> u16 {
        let known = self.profiles.iter().position(|profile| *profile == tunnel);
        known.unwrap_or_else(|| {
            self.profiles.push(tunnel);
            self.profiles.len() - 1
        }) as u16
    }

    /// The index of that group.
    pub(super) fn group(&mut self, group: &Arc<Group>) -> u32 {
        *self.group_indices.entry(Arc::as_ptr(group)).or_insert_with(|| {
            self.own_groups.push(Arc::clone(group));
            self.own_groups.len() as u32 - 1
        })
    }

    /// The members of a service, as it treats those that are down.
    fn members(&mut self, path: &str, message: &proto::Service) -> Result<Arc<Group>, PlanError> {
        let index = self.member_groups.of(path, message)?;
        let group = &self.member_groups.groups[index];
        let second_chance = message.second_chance.is_some();
        let earlier = group.earlier.iter().filter(|_| second_chance).map(Vec::len);
        let members_max = earlier.chain([group.members.len()]).max().unwrap_or_default();
        let table_size = table_size(path, message, members_max)?;
        // When no member is active, fail_open selects among those that are down;
        // but another cluster that is named to spill to comes first.
        let open = message.when_none() == proto::WhenNone::FailOpen
            && message.spill.is_empty()
            && !group.has_active;
        let key = GroupUse { index, table_size, on_down: message.on_down(), open, second_chance };
        if let Some(group) = self.decoded_groups.get(&key) {
            return Ok(Arc::clone(group));
        }
        let members = group.members.iter().map(|(member, id)| MemberKey {
            name: member.backend.clone(),
            backend: *id,
            weight: member.weight,
            admission: admission(member, key.on_down, open),
        });
        let earlier = second_chance.then(|| self.earlier(group));
        let selector = SelectorKey::Maglev { table_size, earlier };
        let group = self.planner.group(GroupKey { selector, members: members.collect() });
        self.decoded_groups.insert(key, Arc::clone(&group));
        Ok(group)
    }

    fn earlier(&self, group: &MemberGroup<'_>) -> EarlierKey {
        let address = |(_, id): &(_, BackendId)| {
            self.backends[id.index()].as_ref().expect("members are backends").address
        };
        let addresses = group.members.iter().map(address).collect();
        EarlierKey { tables: group.earlier.clone(), addresses }
    }

    /// The members of a stateless service, whose map says who has which bucket.
    fn members_by_bucket(
        &mut self,
        path: &str,
        message: &'m proto::Service,
    ) -> Result<Arc<Group>, PlanError> {
        let group = &self.member_groups.groups[self.member_groups.of(path, message)?];
        let map = message.bucket_map.as_ref().expect("a stateless service has one");
        let path = format!("{path}.bucket_map");
        let by_bucket = by_bucket(&path, map, &group.members)?;
        let address = |id: BackendId| self.backends[id.index()].as_ref().map(|one| one.address);
        let moves = open_moves(&path, map, &group.members, address)?;
        let members = group.members.iter().map(|(member, id)| MemberKey {
            name: member.backend.clone(),
            backend: *id,
            weight: member.weight,
            admission: admission(member, message.on_down(), false),
        });
        let selector = SelectorKey::Buckets { by_bucket, moves };
        let members = members.collect();
        Ok(self.planner.group(GroupKey { selector, members }))
    }
}

/// Whether packets are decided by buckets, with what that needs.
fn tracking(path: &str, message: &proto::Service) -> Result<Tracking, PlanError> {
    let is_stateless = message.mode() == proto::Mode::Stateless;
    if message.quic_lb.is_some() && !is_stateless {
        return refuse(format!("{path}.quic_lb"), "is for stateless services only");
    }
    check_mptcp(path, message)?;
    match (is_stateless, &message.bucket_map) {
        (false, None) => Ok(Tracking::Tracked),
        (false, Some(_)) => refuse(format!("{path}.bucket_map"), "is for stateless services only"),
        (true, None) => {
            refuse(format!("{path}.bucket_map"), "is missing, but the mode is stateless")
        }
        (true, Some(_)) if message.encap() != proto::Encap::Geneve => {
            refuse(format!("{path}.encap"), "has to be geneve for a stateless service")
        }
        (true, Some(_)) if message.quic_lb.is_some() => Ok(Tracking::StatelessQuic),
        (true, Some(_)) if message.mptcp.is_some() => Ok(Tracking::StatelessMultipath),
        (true, Some(_)) => Ok(Tracking::Stateless),
    }
}

/// Refuses what goes neither by keys and tokens nor by what else is given.
fn check_mptcp(path: &str, message: &proto::Service) -> Result<(), PlanError> {
    let problem = match message.mptcp {
        None => return Ok(()),
        Some(_) if message.mode() != proto::Mode::Stateless => "is for stateless services only",
        Some(_) if message.quic_lb.is_some() => "is for services without quic_lb",
        Some(_) if message.affinity() != proto::Affinity::Flow => {
            "is for services whose affinity is the flow"
        }
        Some(_) => return Ok(()),
    };
    refuse(format!("{path}.mptcp"), problem)
}

/// Bytes of the longest option that packets may carry.
fn option_bytes(tracking: Tracking, second_chance: Option<SecondChance>) -> u8 {
    match tracking {
        Tracking::StatelessMultipath => tunnel::OPTIONS_BYTES_MAX as u8,
        _ if tracking.is_stateless() || second_chance.is_some() => route_option::BYTES_MAX as u8,
        _ => 0,
    }
}

fn affinity(message: &proto::Service) -> Affinity {
    match message.affinity() {
        proto::Affinity::Flow => Affinity::Flow,
        proto::Affinity::Client => Affinity::Client,
    }
}

/// What its packets may name earlier backends by; None: they do not.
fn second_chance(path: &str, message: &proto::Service) -> Result<Option<SecondChance>, PlanError> {
    let Some(second_chance) = &message.second_chance else { return Ok(None) };
    let path = format!("{path}.second_chance");
    if message.mode() == proto::Mode::Stateless {
        return refuse(path, "is for stateful services only");
    }
    if message.encap() != proto::Encap::Geneve {
        return refuse(path, "needs the encap geneve");
    }
    match NonZeroU64::new(second_chance.packets_per_second) {
        Some(packets_per_second) => Ok(Some(SecondChance { packets_per_second })),
        None => refuse(format!("{path}.packets_per_second"), "is 0: at least 1"),
    }
}

fn table_size(path: &str, message: &proto::Service, members: usize) -> Result<u32, PlanError> {
    let size =
        if message.table_size == 0 { limits::TABLE_SIZE_DEFAULT } else { message.table_size };
    let path = || format!("{path}.table_size");
    // Nearly all have the default: trying its divisors for each costs more than
    // the rest of the service.
    if size != limits::TABLE_SIZE_DEFAULT && !maglev::is_table_size(size) {
        let max = limits::TABLE_SIZE_MAX;
        let problem = format!("{size} is not a prime from 3 to {max}: 65537 and 655373 are");
        return refuse(path(), problem);
    }
    if members > size as usize {
        return refuse(path(), format!("{size} entries are fewer than the {members} members"));
    }
    Ok(size)
}

fn timeouts(path: &str, message: proto::IdleTimeouts) -> Result<Timeouts, PlanError> {
    let default = Timeouts::default();
    let check = |field: &str, value: u32, default: u32, max: u32| match value {
        0 => Ok(default),
        value if (1_000..=max).contains(&value) => Ok(value),
        value => refuse(
            format!("{path}.idle_timeouts.{field}"),
            format!("{value} ms is not within 1000 to {max}"),
        ),
    };
    Ok(Timeouts {
        tcp_ms: check("tcp_ms", message.tcp_ms, default.tcp_ms, limits::ESTABLISHED_IDLE_MS_MAX)?,
        unconfirmed_ms: check(
            "tcp_unconfirmed_ms",
            message.tcp_unconfirmed_ms,
            default.unconfirmed_ms,
            limits::UNCONFIRMED_IDLE_MS_MAX,
        )?,
        closing_ms: check(
            "tcp_closing_ms",
            message.tcp_closing_ms,
            default.closing_ms,
            limits::CLOSING_IDLE_MS_MAX,
        )?,
        udp_ms: check("udp_ms", message.udp_ms, default.udp_ms, limits::ESTABLISHED_IDLE_MS_MAX)?,
    })
}

/// The contract names tunnels as `wire` does.
fn encap(path: &str, message: &proto::Service) -> Result<Option<Encap>, PlanError> {
    encap_of(&format!("{path}.encap"), message.encap())
}

/// The encapsulation of a choice, which the field of that path has; None: none.
pub(super) fn encap_of(path: &str, choice: proto::Encap) -> Result<Option<Encap>, PlanError> {
    let name = crate::word(choice.as_str_name(), "ENCAP_");
    match Encap::by_name(&name) {
        None if name == L2 => Ok(None),
        Some(encap) => Ok(Some(encap)),
        None => refuse(path, format!("`{name}` is not yet supported")),
    }
}

fn dscp(path: &str, value: Option<u32>) -> Result<Dscp, PlanError> {
    match value {
        None => Ok(Dscp::Copy),
        Some(value @ 0..=63) => Ok(Dscp::Set(value as u8)),
        Some(value) => refuse(format!("{path}.dscp"), format!("{value} is not within 0 to 63")),
    }
}

/// Each prefix with the suffix of the service's first Vip of its family.
fn spill(path: &str, message: &proto::Service) -> Result<Vec<SpillTo>, PlanError> {
    let spills = message.spill.iter().enumerate();
    spills
        .map(|(index, spill)| {
            let path = format!("{path}.spill[{index}].prefix");
            let Some((network, bits)) = parse_prefix(&spill.prefix) else {
                return refuse(
                    path,
                    format!("`{}` is not a prefix like 198.51.100.0/24", spill.prefix),
                );
            };
            let family = Family::of(network);
            let host_mask = low_mask(family.address_bits() - u32::from(bits));
            let suffix =
                message.vips.iter().find_map(|vip| suffix_of(vip, family)).unwrap_or(1) & host_mask;
            let network = ip::address_bits(network);
            Ok(SpillTo {
                family,
                network,
                host_mask,
                address: ip::address(family, network | suffix),
                down: spill.down,
            })
        })
        .collect()
}

fn suffix_of(vip: &proto::Vip, family: Family) -> Option<AddressBits> {
    let text = match vip.target.as_ref()? {
        proto::vip::Target::Address(address) => address,
        proto::vip::Target::PrefixSuffix(target) => &target.suffix,
    };
    let address: IpAddr = text.parse().ok()?;
    (Family::of(address) == family).then(|| ip::address_bits(address))
}
