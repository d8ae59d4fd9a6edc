//! The two hashing methods that the paper compares with Maglev's (5.3), each filling a
//! lookup table as Maglev does: entry → backend.
//!
//! Hash values are random functions of names. Where the original papers do not say how to
//! make a *table*, the choice is explained here.

use crate::random::mix;

/// Bits of a word that name a backend; the rest orders the words.
const INDEX_BITS: u32 = 16;

/// How the entries of a table are laid on Karger's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Entry j stands at a random place, as a key of the original would.
    Hashed,
    /// Entry j stands at j / M of the ring: the table is the ring in M steps.
    Even,
}

/// Consistent hashing (Karger et al. 1997): each backend has `views` random
/// points on a ring, and an entry belongs to the next point from it on.
#[must_use]
pub fn karger(names: &[u64], views: u32, ring: Ring, size: u32) -> Vec<u16> {
    let point = |(index, name): (usize, &u64)| {
        let name = *name;
        (1..=u64::from(views)).map(move |view| indexed(mix(name ^ mix(view)), index))
    };
    let mut points: Vec<u64> = names.iter().enumerate().flat_map(point).collect();
    points.sort_unstable();

    let mut entries: Vec<(u64, u32)> =
        (0..size).map(|entry| (place(ring, entry, size), entry)).collect();
    entries.sort_unstable();

    let mut table = vec![0; size as usize];
    let mut next = 0;
    for (place, entry) in entries {
        while next < points.len() && points[next] < place {
            next += 1;
        }
        // Behind the last point comes the first again: it is a ring.
        table[entry as usize] = points[next % points.len()] as u16;
    }
    table
}

fn place(ring: Ring, entry: u32, size: u32) -> u64 {
    match ring {
        Ring::Hashed => mix(entry_word(entry)),
        Ring::Even => ((u128::from(entry) << 64) / u128::from(size)) as u64,
    }
}

/// Rendezvous hashing (Thaler and Ravishankar 1998): an entry belongs to the
/// backend whose hash together with the entry is the highest.
#[must_use]
pub fn rendezvous(names: &[u64], size: u32) -> Vec<u16> {
    let owner = |entry: u32| {
        let word = mix(entry_word(entry));
        let scores = names.iter().enumerate().map(|(index, name)| indexed(mix(name ^ word), index));
        scores.max().expect("at least one backend") as u16
    };
    (0..size).map(owner).collect()
}

/// A hash whose low bits name its backend: comparing hashes then carries the
/// name along. Two hashes of a table agree in the other 48 bits with a chance
/// of 1 in 500; the smaller index then wins or loses, which moves one entry.
#[inline]
fn indexed(hash: u64, index: usize) -> u64 {
    hash & (!0 << INDEX_BITS) | index as u64
}

/// Apart from all names, which are hashes.
fn entry_word(entry: u32) -> u64 {
    u64::from(entry) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: u64) -> Vec<u64> {
        (0..count).map(|index| mix(index + 77)).collect()
    }

    /// Both promise that the entries of those that remain do not change.
    #[test]
    fn removing_a_backend_moves_only_its_own_entries() {
        let all = names(50);
        let most = &all[..49];
        for (before, after) in [
            (karger(&all, 100, Ring::Hashed, 4099), karger(most, 100, Ring::Hashed, 4099)),
            (karger(&all, 100, Ring::Even, 4099), karger(most, 100, Ring::Even, 4099)),
            (rendezvous(&all, 4099), rendezvous(most, 4099)),
        ] {
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
            assert!(moved.clone().all(|(before, _)| *before == 49));
            assert!(moved.count() > 20);
        }
    }

    #[test]
    fn karger_gives_an_entry_to_the_next_point_on_the_ring() {
        let names = names(3);
        let table = karger(&names, 2, Ring::Even, 101);
        let mut points: Vec<(u64, u16)> = (0..3u16)
            .flat_map(|index| (1..=2).map(move |view| (index, view)))
            .map(|(index, view)| (mix(names[usize::from(index)] ^ mix(view)), index))
            .collect();
        points.sort_unstable();
        for (entry, owner) in table.iter().enumerate() {
            let place = ((entry as u128) << 64) / 101;
            let next =
                points.iter().find(|point| u128::from(point.0) >= place).unwrap_or(&points[0]);
            assert_eq!(*owner, next.1, "entry {entry}");
        }
    }

    #[test]
    fn every_backend_gets_about_its_share() {
        for table in
            [karger(&names(10), 1000, Ring::Hashed, 65_537), rendezvous(&names(10), 65_537)]
        {
            for index in 0..10 {
                let share = table.iter().filter(|owner| **owner == index).count();
                assert!((5_500..7_500).contains(&share), "{share}");
            }
        }
    }
}
