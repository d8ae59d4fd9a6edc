//! Bucket maps: the member in charge of each bucket of a stateless service.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::tunnel::route_option::{self, RouteOption};

use super::{PlanError, refuse};
use crate::ids::BackendId;
use crate::select::buckets::OpenMove;
use crate::{limits, proto};

/// By bucket, the index of a member. `members` are in order of their names.
pub(super) fn by_bucket(
    path: &str,
    map: &proto::BucketMap,
    members: &[(&proto::Member, BackendId)],
) -> Result<Box<[u16]>, PlanError> {
    let count = map.by_bucket.len();
    let is_count =
        count.is_power_of_two() && (limits::BUCKETS_MIN..=limits::BUCKETS_MAX).contains(&count);
    if count > 0 && !is_count {
        let (min, max) = (limits::BUCKETS_MIN, limits::BUCKETS_MAX);
        let problem = format!("{count} buckets are not a power of two within {min} to {max}");
        return refuse(format!("{path}.by_bucket"), problem);
    }
    let members = indices(path, map, members)?;
    let index = |(bucket, backend): (usize, &u32)| match members.get(*backend as usize) {
        Some(member) => Ok(*member),
        None => refuse(
            format!("{path}.by_bucket[{bucket}]"),
            format!("{backend} is no index of the {} backends", members.len()),
        ),
    };
    map.by_bucket.iter().enumerate().map(index).collect()
}

/// The map's open moves, with the option that packets carry; `address` is that of
/// a backend. The map's other fields are in order.
pub(super) fn open_moves(
    path: &str,
    map: &proto::BucketMap,
    members: &[(&proto::Member, BackendId)],
    address: impl Fn(BackendId) -> Option<IpAddr>,
) -> Result<Box<[OpenMove]>, PlanError> {
    if map.moves.is_empty() {
        return Ok(Box::default());
    }
    let members =
        indices(path, map, members)?.into_iter().map(|member| members[usize::from(member)]);
    let addresses: Vec<IpAddr> =
        members.map(|(_, id)| address(id).expect("members are backends")).collect();
    let mut buckets = 0..map.by_bucket.len() as u32;
    let option = |(at, open): (usize, &proto::OpenMove)| {
        let path = format!("{path}.moves[{at}]");
        if !buckets.contains(&open.bucket) {
            let problem = format!(
                "{} is no bucket of {}, or not behind that of the move before",
                open.bucket,
                map.by_bucket.len()
            );
            return refuse(format!("{path}.bucket"), problem);
        }
        buckets.start = open.bucket + 1;
        check_others(&path, map, open)?;
        let option = RouteOption {
            returns: false,
            hop_limit: route_option::HOP_LIMIT,
            bucket: Some(open.bucket as u16),
            generation: map.generation as u32,
            addresses: open.others.iter().map(|other| addresses[*other as usize]).collect(),
        };
        Ok(OpenMove { bucket: open.bucket as u16, option })
    };
    map.moves.iter().enumerate().map(option).collect()
}

/// Refuses a move that does not name other backends.
fn check_others(
    path: &str,
    map: &proto::BucketMap,
    open: &proto::OpenMove,
) -> Result<(), PlanError> {
    let count = open.others.len();
    if !(1..=route_option::ADDRESSES_MAX).contains(&count) {
        let problem =
            format!("{count} of them, but a move has 1 to {}", route_option::ADDRESSES_MAX);
        return refuse(format!("{path}.others"), problem);
    }
    let in_charge = map.by_bucket[open.bucket as usize];
    for (at, other) in open.others.iter().enumerate() {
        let problem = if *other as usize >= map.backends.len() {
            format!("{other} is no index of the {} backends", map.backends.len())
        } else if *other == in_charge || open.others[..at].contains(other) {
            format!("backend {other} has the bucket, or is there twice")
        } else {
            continue;
        };
        return refuse(format!("{path}.others[{at}]"), problem);
    }
    Ok(())
}

/// The member of each of the map's backends.
fn indices(
    path: &str,
    map: &proto::BucketMap,
    members: &[(&proto::Member, BackendId)],
) -> Result<Vec<u16>, PlanError> {
    let mut by_name: HashMap<&str, u16> =
        members.iter().zip(0..).map(|((member, _), at)| (member.backend.as_str(), at)).collect();
    let index = |(at, name): (usize, &String)| match by_name.remove(name.as_str()) {
        Some(member) => Ok(member),
        None => {
            let problem = format!("`{name}` is no member of the service's group, or there twice");
            refuse(format!("{path}.backends[{at}]"), problem)
        }
    };
    map.backends.iter().enumerate().map(index).collect()
}
