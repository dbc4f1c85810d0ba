//! All steps of all tries in one flat table: a step costs one or two lines of memory, however many
//! there are. Used by `table`.

/// From a node by a text to another node.
#[derive(Debug)]
pub struct Steps {
    /// As many as a power of two, at most half of them taken: a step stands at the place of its hash or
    /// after it, before the next free one.
    slots: Vec<Slot>,
    texts: String,
}

/// `to` is 0 while the slot is free.
#[derive(Clone, Debug, Default)]
struct Slot {
    hash: u32,
    from: u32,
    to: u32,
    start: u32,
    length: u32,
}

impl Steps {
    /// Of steps that all differ in where they begin or by what they go; none leads to node 0.
    pub fn new<'a>(steps: impl IntoIterator<Item = ((u32, &'a str), u32), IntoIter: ExactSizeIterator>) -> Steps {
        let steps = steps.into_iter();
        let room = (steps.len() * 2).next_power_of_two();
        let mut made = Steps { slots: vec![Slot::default(); room], texts: String::new() };
        for ((from, text), to) in steps {
            let hash = hash(from, text);
            let place = made.places(hash).find(|place| made.slots[*place].to == 0);
            let (start, length) = (small(made.texts.len()), small(text.len()));
            made.texts.push_str(text);
            if let Some(place) = place {
                made.slots[place] = Slot { hash, from, to, start, length };
            }
        }
        made.texts.shrink_to_fit();
        made
    }

    pub fn find(&self, from: u32, text: &str) -> Option<u32> {
        let hash = hash(from, text);
        let taken = self.places(hash).map(|place| &self.slots[place]).take_while(|slot| slot.to != 0);
        taken
            .into_iter()
            .find(|slot| slot.hash == hash && slot.from == from && self.text(slot) == text)
            .map(|slot| slot.to)
    }

    /// Every place once, from that of `hash` on.
    fn places(&self, hash: u32) -> impl Iterator<Item = usize> + use<> {
        let last = self.slots.len() - 1;
        (0..=last).map(move |offset| (hash as usize + offset) & last)
    }

    fn text(&self, slot: &Slot) -> &str {
        let start = slot.start as usize;
        &self.texts[start..start + slot.length as usize]
    }
}

/// Unkeyed: who asks cannot choose what stands in the table.
fn hash(from: u32, text: &str) -> u32 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(ODD);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole =
        words.iter().fold(mix(u64::from(from), text.len() as u64), |hash, word| mix(hash, u64::from_le_bytes(*word)));
    // The upper half is the better mixed one.
    (mix(whole, u64::from_le_bytes(last)) >> 32) as u32
}

/// A count of what a config holds. Four billion routes would not fit into memory.
pub fn small(count: usize) -> u32 {
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
            let table = Steps::new(steps.iter().copied());
            for ((from, text), to) in steps {
                assert_eq!(table.find(from, text), Some(to));
                assert_eq!(table.find(from + 1000, text), None);
                assert_eq!(table.find(from, &text[1..]), None);
            }
            assert_eq!(table.find(0, ""), None);
        }
    }
}
