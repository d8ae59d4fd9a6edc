//! Vips and prefix groups: the service that a packet is for.

use std::collections::BTreeMap;

use wire::ip::{self, AddressBits};
use wire::{Family, Protocol};

use super::{Decoding, PlanError, parse_address, refuse};
use crate::matching::{AddressInfo, AddressPattern, Matched, Ports, low_mask};
use crate::plan::Match;
use crate::proto;
use crate::text::parse_prefix;

impl<'m> Decoding<'m, '_> {
    /// Makes a class for each family and prefix length of the group.
    pub(super) fn prefix_group(
        &mut self,
        index: usize,
        group: &'m proto::PrefixGroup,
    ) -> Result<(), PlanError> {
        let mut classes: BTreeMap<(Family, u32), u32> = BTreeMap::new();
        for (at, text) in group.prefixes.iter().enumerate() {
            let path = || format!("prefix_groups[{index}].prefixes[{at}]");
            let Some((address, bits)) = parse_prefix(text) else {
                return refuse(
                    path(),
                    format!("`{text}` is not a prefix like 203.0.113.0/24 with zeros behind it"),
                );
            };
            let (family, bits) = (Family::of(address), u32::from(bits));
            let class = *classes.entry((family, bits)).or_insert_with(|| self.vips.class());
            if !self.vips.prefix(family, ip::address_bits(address), bits, class) {
                return refuse(
                    path(),
                    format!("`{text}` is in a prefix group already; a prefix has one class"),
                );
            }
        }
        let classes =
            classes.into_iter().map(|((family, bits), class)| (family, bits, class)).collect();
        if self.groups.insert(group.name.as_str(), classes).is_some() {
            return refuse(
                format!("prefix_groups[{index}].name"),
                format!("`{}` is there twice", group.name),
            );
        }
        Ok(())
    }

    /// Adds a Vip of a service: one match for each range of its ports.
    pub(super) fn vip(
        &mut self,
        path: &str,
        (index, vip): (u32, &proto::Vip),
        ports: Vec<Ports>,
        of_service: Matched,
        info: AddressInfo,
    ) -> Result<(), PlanError> {
        let (family, target, patterns) = self.patterns(path, vip)?;
        let address = match patterns.as_slice() {
            [AddressPattern::Exact(_, address)] => Some(*address),
            _ => None,
        };
        for ports in ports {
            let matched = Matched { matched: self.matches.len() as u32, ..of_service };
            let (protocol, text) = ports_text(ports);
            self.matches.push(Match {
                matched,
                vip: index,
                family,
                target: target.clone(),
                protocol,
                ports: text,
                only: address.map(|address| (address, ports)),
            });
            for pattern in &patterns {
                if let Err(conflict) = self.vips.add(*pattern, ports, matched, info) {
                    return self.refuse_conflict(path, &conflict.with);
                }
            }
        }
        Ok(())
    }

    fn refuse_conflict(&self, path: &str, with: &Matched) -> Result<(), PlanError> {
        let other = &self.matches[with.matched as usize];
        let position = other.matched.listed;
        refuse(
            path,
            format!(
                "claims packets that services[{position}].vips[{}] ({} {} {}) claims already",
                other.vip, other.target, other.protocol, other.ports
            ),
        )
    }

    /// A Vip's address or suffixes with their family, and how people write that.
    fn patterns(
        &self,
        path: &str,
        vip: &proto::Vip,
    ) -> Result<(Family, String, Vec<AddressPattern>), PlanError> {
        match &vip.target {
            Some(proto::vip::Target::Address(text)) => {
                let address = parse_address(text, || format!("{path}.address"))?;
                let family = Family::of(address);
                let pattern = AddressPattern::Exact(family, ip::address_bits(address));
                Ok((family, address.to_string(), vec![pattern]))
            }
            Some(proto::vip::Target::PrefixSuffix(target)) => {
                self.suffix_patterns(&format!("{path}.prefix_suffix"), target)
            }
            None => refuse(path, "has neither an address nor a prefix group with a suffix"),
        }
    }

    fn suffix_patterns(
        &self,
        path: &str,
        target: &proto::PrefixSuffix,
    ) -> Result<(Family, String, Vec<AddressPattern>), PlanError> {
        let Some(classes) = self.groups.get(target.prefix_group.as_str()) else {
            return refuse(
                format!("{path}.prefix_group"),
                format!("there is no `{}`", target.prefix_group),
            );
        };
        let address = parse_address(&target.suffix, || format!("{path}.suffix"))?;
        let (family, suffix) = (Family::of(address), ip::address_bits(address));
        let mut patterns = Vec::new();
        for (_, prefix_bits, class) in classes.iter().filter(|(other, _, _)| *other == family) {
            let host = family.address_bits() - prefix_bits;
            let bits = if target.suffix_bits == 0 { host } else { target.suffix_bits };
            check_suffix(path, suffix, bits, family, *prefix_bits)?;
            patterns.push(AddressPattern::Suffix { class: *class, bits, suffix });
        }
        if patterns.is_empty() {
            return refuse(
                format!("{path}.suffix"),
                format!("no prefix of `{}` has its family", target.prefix_group),
            );
        }
        Ok((family, format!("{}:{address}", target.prefix_group), patterns))
    }
}

fn check_suffix(
    path: &str,
    suffix: AddressBits,
    bits: u32,
    family: Family,
    prefix_bits: u32,
) -> Result<(), PlanError> {
    if bits > family.address_bits() {
        return refuse(
            format!("{path}.suffix_bits"),
            format!("{bits} is more than an address has"),
        );
    }
    if suffix & !low_mask(bits) != 0 {
        return refuse(
            format!("{path}.suffix"),
            format!("has bits set above the {bits} that a /{prefix_bits} prefix leaves to it"),
        );
    }
    Ok(())
}

/// The protocol and port combinations of a Vip.
pub(super) fn ports(path: &str, vip: &proto::Vip) -> Result<Vec<Ports>, PlanError> {
    let protocols: &[Protocol] = match vip.protocol() {
        proto::Protocol::Any => &[Protocol::TCP, Protocol::UDP],
        proto::Protocol::Tcp => &[Protocol::TCP],
        proto::Protocol::Udp => &[Protocol::UDP],
    };
    if vip.ports.is_empty() {
        return Ok(match vip.protocol() {
            proto::Protocol::Any => vec![Ports::Any],
            _ => vec![Ports::All(protocols[0])],
        });
    }
    let mut all = Vec::new();
    for (at, range) in vip.ports.iter().enumerate() {
        let bounds = (u16::try_from(range.first), u16::try_from(range.last));
        let (Ok(first @ 1..), Ok(last)) = bounds else {
            return refuse(
                format!("{path}.ports[{at}]"),
                format!("{}-{} is not within 1-65535", range.first, range.last),
            );
        };
        if last < first {
            return refuse(
                format!("{path}.ports[{at}]"),
                format!("{first}-{last} ends before it begins"),
            );
        }
        all.extend(protocols.iter().map(|protocol| Ports::Range(*protocol, first, last)));
    }
    Ok(all)
}

fn ports_text(ports: Ports) -> (&'static str, String) {
    let name = |protocol| if protocol == Protocol::TCP { "tcp" } else { "udp" };
    match ports {
        Ports::Any => ("any", "all".to_owned()),
        Ports::All(protocol) => (name(protocol), "all".to_owned()),
        Ports::Range(protocol, first, last) if first == last => (name(protocol), first.to_string()),
        Ports::Range(protocol, first, last) => (name(protocol), format!("{first}-{last}")),
    }
}
