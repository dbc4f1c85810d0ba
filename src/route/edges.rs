//! A hash table with the edges of all tries of a route table. Following an edge reads one or two cache lines, however
//! many edges there are.

/// Edges: from a node and a text to another node.
#[derive(Debug)]
pub struct EdgeTable {
    /// Open addressing with linear probing. The length is a power of two, and at most half of the slots are used.
    slots: Vec<EdgeSlot>,
    texts: String,
}

/// One edge. The slot is free if `to` is 0.
#[derive(Clone, Debug, Default)]
struct EdgeSlot {
    hash: u32,
    from: u32,
    to: u32,
    start: u32,
    length: u32,
}

impl EdgeTable {
    /// Builds the table. No two edges may have the same node and text, and none may lead to node 0.
    pub fn new<'a>(steps: impl IntoIterator<Item = ((u32, &'a str), u32), IntoIter: ExactSizeIterator>) -> EdgeTable {
        let steps = steps.into_iter();
        let room = (steps.len() * 2).next_power_of_two();
        let mut table = EdgeTable { slots: vec![EdgeSlot::default(); room], texts: String::new() };
        for ((from, text), to) in steps {
            let hash = hash_edge(from, text);
            let place = table.probe_slots(hash).find(|place| table.slots[*place].to == 0);
            let (start, length) = (to_u32(table.texts.len()), to_u32(text.len()));
            table.texts.push_str(text);
            if let Some(place) = place {
                table.slots[place] = EdgeSlot { hash, from, to, start, length };
            }
        }
        table.texts.shrink_to_fit();
        table
    }

    /// Returns the node to which `text` leads from node `from`.
    pub fn find(&self, from: u32, text: &str) -> Option<u32> {
        let hash = hash_edge(from, text);
        let slots = self.probe_slots(hash).map(|place| &self.slots[place]).take_while(|slot| slot.to != 0);
        slots
            .into_iter()
            .find(|slot| slot.hash == hash && slot.from == from && self.slot_text(slot) == text)
            .map(|slot| slot.to)
    }

    /// Returns every slot index once, starting at the one for `hash`.
    fn probe_slots(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let last = self.slots.len() - 1;
        (0..=last).map(move |offset| (hash as usize + offset) & last)
    }

    fn slot_text(&self, slot: &EdgeSlot) -> &str {
        let start = slot.start as usize;
        &self.texts[start..start + slot.length as usize]
    }
}

/// Hashes an edge. The hash has no secret key: clients cannot choose what is in the table.
fn hash_edge(from: u32, text: &str) -> u32 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(ODD);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole =
        words.iter().fold(mix(u64::from(from), text.len() as u64), |hash, word| mix(hash, u64::from_le_bytes(*word)));
    // The upper half is mixed better.
    (mix(whole, u64::from_le_bytes(last)) >> 32) as u32
}

/// Converts a count of config items. Four billion routes would not fit into memory.
pub fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_found_and_no_other() {
        for count in [0, 1, 2, 3, 1000] {
            let texts: Vec<String> =
                (0..count).map(|i| "a segment, and a long one"[..8 + i % 14].to_owned() + &i.to_string()).collect();
            let steps: Vec<_> = texts.iter().zip(1..).map(|(text, to)| ((to / 7, text.as_str()), to)).collect();
            let table = EdgeTable::new(steps.iter().copied());
            for ((from, text), to) in steps {
                assert_eq!(table.find(from, text), Some(to));
                assert_eq!(table.find(from + 1000, text), None);
                assert_eq!(table.find(from, &text[1..]), None);
            }
            assert_eq!(table.find(0, ""), None);
        }
    }
}
