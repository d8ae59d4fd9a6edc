//! Earlier tables of a group, for services with a second chance.

use std::collections::BTreeMap;

use super::{PlanError, refuse};
use crate::select::maglev::Candidate;
use crate::{limits, proto};

/// The members of each of a group's earlier tables, in order of name; the latest
/// first. `weights` are those of the present one, by name; the message has what differs from the table that followed.
pub(super) fn earlier_tables<'m>(
    path: &str,
    message: &'m proto::Group,
    mut weights: BTreeMap<&'m str, u32>,
) -> Result<Vec<Vec<Candidate>>, PlanError> {
    let (count, max) = (message.earlier.len(), limits::EARLIER_TABLES_MAX);
    if count > max {
        return refuse(format!("{path}.earlier"), format!("{count} of them, at most {max} fit"));
    }
    let mut tables = Vec::with_capacity(count);
    for (at, table) in message.earlier.iter().enumerate() {
        for (index, differs) in table.differences.iter().enumerate() {
            let path = || format!("{path}.earlier[{at}].differences[{index}]");
            if differs.backend.is_empty() {
                return refuse(format!("{}.backend", path()), "is empty");
            }
            if differs.weight > limits::WEIGHT_MAX {
                let problem = format!("{} is above {}", differs.weight, limits::WEIGHT_MAX);
                return refuse(format!("{}.weight", path()), problem);
            }
            match differs.weight {
                0 => weights.remove(differs.backend.as_str()),
                weight => weights.insert(&differs.backend, weight),
            };
        }
        let candidate =
            |(name, weight): (&&str, &u32)| Candidate { name: (*name).to_owned(), weight: *weight };
        tables.push(weights.iter().map(candidate).collect());
    }
    Ok(tables)
}
