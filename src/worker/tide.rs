//! When a worker gives memory back: once a flood of connections has left or come to rest. Looked at with
//! each beat.

use std::cell::Cell;

use crate::heap;

#[derive(Default)]
pub struct Tide {
    parsers: Cell<usize>,
    /// The most weight since memory was last given back.
    crest: Cell<usize>,
    beats: Cell<u32>,
}

/// A connection with its parser and buffers takes some 20 kB, one at rest a tenth of that.
const PARSER_WEIGHT: usize = 9;
/// A fall by less is not worth the trouble: about a megabyte.
const LEAST_FALL: usize = 500;
/// Once a second at most: what comes back at once is cheaper to keep.
const BEATS: u32 = 10;

/// Counts a connection that has its parser.
pub struct Parsing<'a>(&'a Tide);

impl Tide {
    pub fn parse(&self) -> Parsing<'_> {
        self.parsers.set(self.parsers.get() + 1);
        Parsing(self)
    }

    /// A beat of a worker with so many connections.
    pub fn beat(&self, connections: usize) {
        let weight = connections + self.parsers.get() * PARSER_WEIGHT;
        self.crest.set(self.crest.get().max(weight));
        self.beats.set(self.beats.get() + 1);
        if self.beats.get() >= BEATS {
            self.beats.set(0);
            if weight + LEAST_FALL <= self.crest.get() && weight * 2 <= self.crest.get() {
                self.crest.set(weight);
                heap::give_back();
            }
        }
    }
}

impl Drop for Parsing<'_> {
    fn drop(&mut self) {
        self.0.parsers.set(self.0.parsers.get() - 1);
    }
}
