//! The backends that slots of a Maglev table had in earlier tables: the possible backends of a
//! connection that began under one of them, and has no entry.
//!
//! Only slots that had another backend are stored:
//!
//! ```text
//!  by word  | which of 64 slots | how many before |      16 bytes for 64 slots
//!  by slot  | index |                                     4 bytes for each that differs
//!  options  | what its packets carry |                    64 bytes for each distinct one
//! ```

use std::collections::HashMap;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use wire::tunnel::route_option::{ADDRESSES_MAX, Emitted, HOP_LIMIT, RouteOption};

use crate::ids::BackendId;

/// A backend that a connection may live on, and where its agent is.
pub type Place = (BackendId, IpAddr);

/// What packets carry by slot, where earlier tables differ.
#[derive(Debug)]
pub struct EarlierSlots {
    words: Box<[Word]>,
    by_slot: Box<[u32]>,
    options: Box<[Emitted]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Word {
    /// Which of 64 slots differ.
    slots: u64,
    /// How many do in the words before.
    before: u32,
}

const SLOTS: usize = u64::BITS as usize;

impl EarlierSlots {
    /// By `present` and by `earlier` tables, the latest first: each gives the
    /// backend of a slot, or None where no connection is kept. None: no slot differs.
    #[must_use]
    pub fn new(
        slots: usize,
        present: impl Fn(usize) -> BackendId,
        earlier: &[Box<dyn Fn(usize) -> Option<Place> + '_>],
    ) -> Option<EarlierSlots> {
        let mut words = vec![Word::default(); slots.div_ceil(SLOTS)].into_boxed_slice();
        let (mut by_slot, mut options) = (Vec::new(), Vec::new());
        let mut known: HashMap<Places, u32> = HashMap::new();
        for slot in 0..slots {
            let word = &mut words[slot / SLOTS];
            if slot.is_multiple_of(SLOTS) {
                word.before = by_slot.len() as u32;
            }
            let places = distinct(present(slot), earlier.iter().filter_map(|table| table(slot)));
            if places.is_empty() {
                continue;
            }
            word.slots |= 1 << (slot % SLOTS);
            by_slot.push(*known.entry(places).or_insert_with_key(|places| {
                options.push(option(places));
                options.len() as u32 - 1
            }));
        }
        (!by_slot.is_empty()).then(|| EarlierSlots {
            words,
            by_slot: by_slot.into(),
            options: options.into(),
        })
    }

    /// What packets carry whose hash falls on the slot; None: nothing.
    #[inline]
    #[must_use]
    pub fn option(&self, slot: u32) -> Option<&Emitted> {
        let (word, bit) = (self.words[slot as usize / SLOTS], slot as usize % SLOTS);
        if word.slots >> bit & 1 == 0 {
            return None;
        }
        let before = (word.slots & ((1 << bit) - 1)).count_ones();
        Some(&self.options[self.by_slot[(word.before + before) as usize] as usize])
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Self { words, by_slot, options } = self;
        (size_of_val(&**words) + size_of_val(&**by_slot) + size_of_val(&**options)) as u64
    }
}

type Places = ArrayVec<Place, ADDRESSES_MAX>;

/// The first few, but for the one in charge, each once.
fn distinct(in_charge: BackendId, earlier: impl Iterator<Item = Place>) -> Places {
    let mut places = Places::new();
    for place in earlier {
        if place.0 != in_charge && !places.contains(&place) && places.try_push(place).is_err() {
            break;
        }
    }
    places
}

fn option(places: &Places) -> Emitted {
    let addresses = places.iter().map(|(_, address)| *address).collect();
    let (returns, hop_limit, bucket, generation) = (false, HOP_LIMIT, None, 0);
    RouteOption { returns, hop_limit, bucket, generation, addresses }.emit()
}

#[cfg(test)]
mod tests {
    use wire::tunnel::geneve;

    use super::*;

    fn address(backend: u16) -> IpAddr {
        [10, 1, (backend >> 8) as u8, backend as u8].into()
    }

    fn tables(tables: &[Vec<u16>]) -> Vec<Box<dyn Fn(usize) -> Option<Place> + '_>> {
        let place = |backend| (backend != 0).then(|| (BackendId(backend), address(backend)));
        tables
            .iter()
            .map(|table| Box::new(move |slot: usize| place(table[slot])) as Box<dyn Fn(_) -> _>)
            .collect()
    }

    fn addresses(earlier: &EarlierSlots, slot: u32) -> Vec<IpAddr> {
        let Some(option) = earlier.option(slot) else { return Vec::new() };
        let option = geneve::options(option).next().unwrap().unwrap();
        RouteOption::parse(&option).unwrap().unwrap().addresses.to_vec()
    }

    #[test]
    fn each_slot_names_its_earlier_backends_once_the_latest_first() {
        // Deterministic, and different in every slot; 0 keeps no connection.
        let value = |table: usize, slot: usize| ((slot * 7 + table * table * 5) % 6) as u16;
        let slots = 1009;
        let earlier: Vec<Vec<u16>> =
            (1..=8).map(|table| (0..slots).map(|slot| value(table, slot)).collect()).collect();
        let present = |slot| BackendId(1 + value(0, slot));
        let held = EarlierSlots::new(slots, present, &tables(&earlier)).unwrap();
        let mut differing = 0;
        for slot in 0..slots {
            let mut expected = Vec::new();
            for table in &earlier {
                let backend = table[slot];
                let is_new = backend != 0 && backend != present(slot).0;
                if is_new && !expected.contains(&address(backend)) {
                    expected.push(address(backend));
                }
            }
            expected.truncate(ADDRESSES_MAX);
            assert_eq!(addresses(&held, slot as u32), expected, "slot {slot}");
            differing += usize::from(!expected.is_empty());
        }
        assert_eq!(held.by_slot.len(), differing);
        assert!(held.bytes() < (slots * 30) as u64, "{}", held.bytes());
    }

    #[test]
    fn where_no_slot_differs_nothing_is_held() {
        let earlier = [vec![3; 251], vec![0; 251]];
        assert!(EarlierSlots::new(251, |_| BackendId(3), &tables(&earlier)).is_none());
        assert!(EarlierSlots::new(251, |_| BackendId(3), &[]).is_none());
    }
}
