//! Bucket maps: which member has each bucket of a stateless service.

use std::collections::HashMap;

use super::{PlanError, refuse};
use crate::ids::BackendId;
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
