//! Priorities of requests, and which of them an overloaded upstream refuses first. Pure: random numbers are arguments.

/// The number of priorities.
pub const PRIORITIES: usize = 5;

/// The priority of a request, from 0 to 4. Requests of 0 are refused first, those of 4 last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(u8);

impl Default for Priority {
    /// The priority of a route without `priority`.
    fn default() -> Priority {
        Priority(2)
    }
}

impl Priority {
    /// Returns the priority with this number, from 0 to 4.
    pub fn from_number(number: i64) -> Option<Priority> {
        u8::try_from(number).ok().filter(|number| usize::from(*number) < PRIORITIES).map(Priority)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Arrivals after which all counts are halved, so that old ones lose their weight.
const HALVED_AFTER: u32 = 1024;

/// How many requests of each priority arrived recently.
#[derive(Debug, Default)]
pub struct RecentArrivals([u32; PRIORITIES]);

impl RecentArrivals {
    pub fn count(&mut self, priority: Priority) {
        self.0[priority.index()] += 1;
        if self.0.iter().sum::<u32>() >= HALVED_AFTER {
            self.0.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// Returns whether a request of `priority` is among the fraction `part` / `whole` of the recent arrivals with the
    /// lowest priorities. Within the priority at the boundary, `random` selects the fraction that is missing.
    pub fn is_shed(&self, priority: Priority, part: usize, whole: usize, random: u32) -> bool {
        let to_wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let all: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let shed = all.saturating_mul(to_wide(part.min(whole))) / to_wide(whole.max(1));
        let below: u64 = self.0[..priority.index()].iter().map(|count| u64::from(*count)).sum();
        let own = u64::from(self.0[priority.index()]).max(1);
        let missing = shed.saturating_sub(below).min(own);
        u64::from(random) * own < missing << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_priorities_are_shed_first() {
        let mut arrivals = RecentArrivals::default();
        let [low, middle, high] = [0, 2, 4].map(|number| Priority::from_number(number).unwrap());
        for _ in 0..100 {
            [low, low, middle, high].into_iter().for_each(|priority| arrivals.count(priority));
        }
        // A quarter: half of the lowest. Three quarters: all but the highest.
        for (priority, part, shed) in [
            (low, 1, 0.5),
            (middle, 1, 0.0),
            (high, 1, 0.0),
            (low, 3, 1.0),
            (middle, 3, 1.0),
            (high, 3, 0.0),
            (high, 4, 1.0),
            (low, 0, 0.0),
        ] {
            let count = (0..1000_u32).filter(|i| arrivals.is_shed(priority, part, 4, i * (u32::MAX / 1000))).count();
            let found = f64::from(u32::try_from(count).unwrap()) / 1000.0;
            assert!((found - shed).abs() < 0.02, "{priority:?} {part}: {found}");
        }
        assert_eq!(Priority::from_number(5), None);
        assert_eq!(Priority::from_number(-1), None);
    }

    #[test]
    fn counts_are_bounded_and_follow_the_traffic() {
        let mut arrivals = RecentArrivals::default();
        let [low, high] = [0, 4].map(|number| Priority::from_number(number).unwrap());
        (0..10_000).for_each(|_| arrivals.count(low));
        assert!(arrivals.0.iter().sum::<u32>() < HALVED_AFTER);
        (0..10_000).for_each(|_| arrivals.count(high));
        // Nearly all are of the highest priority now, so half of them is shed too.
        assert!(arrivals.is_shed(high, 1, 2, u32::MAX / 3));
        assert!(!arrivals.is_shed(high, 1, 2, u32::MAX / 3 * 2));
    }
}
