//! Calendar limits of one key with several boundaries: days on which months begin, zones, and times at which days
//! begin. On both stores, against the plain list of all charges.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::answer::Answer;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::memory::MemoryStore;

use super::NOW;
use crate::support::limiting as stores;
use crate::support::limiting::timed_stores::{TimedStore, on_both};
use crate::support::limiting::variants::compile_rule;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The settings of some gateways, or the days of some requests. No key has more of them than records.
const BOUNDARIES: [(&str, i64, &[&str]); 5] = [
    ("month", DAY_MS, &["resets_on = 1", "resets_on = 15"]),
    ("month", DAY_MS, &["resets_on = 1", "resets_on = 2", "resets_on = 16", "resets_on = 31"]),
    ("day", HOUR_MS, &["", "zone = \"Asia/Kathmandu\"", "resets_at = \"12:00\"", "resets_at = \"00:01\""]),
    ("day", HOUR_MS, &["zone = \"America/New_York\"", "zone = \"America/New_York\"\nresets_at = \"02:30\""]),
    ("week", DAY_MS / 4, &["", "week_start = \"sunday\"", "resets_at = \"08:00\""]),
];

/// One boundary of the key.
struct Boundary {
    rule: Rule,
    /// When its record began to count.
    since: Option<i64>,
    /// End of the window after that of its last request, or sooner. Its record counts until then.
    counts_until: i64,
}

/// A key, and the charges that stand.
struct Key<'s> {
    store: &'s TimedStore,
    check: Check,
    boundaries: Vec<Boundary>,
    charges: Vec<ModelCharge>,
    now: i64,
}

struct ModelCharge {
    at: i64,
    cost: i64,
    /// The boundary that decided it.
    by: usize,
}

impl Key<'_> {
    fn new<'s>(store: &'s TimedStore, name: &str, limit: i64, (unit, lines): (&str, &[&str])) -> Key<'s> {
        let rule = |line: &&str| compile_rule(&format!("algorithm = \"calendar\"\nrate = \"{limit}/{unit}\"\n{line}"));
        let boundary = |line| Boundary { rule: rule(line), since: None, counts_until: 0 };
        let boundaries: Vec<Boundary> = lines.iter().map(boundary).collect();
        let limit = stores::limit("one", boundaries[0].rule.clone(), Mode::Enforce);
        Key { store, check: stores::check(&limit, name, 1), boundaries, charges: Vec::new(), now: NOW }
    }

    fn ask(&self, which: usize, cost: i64, now: i64) -> Answer {
        let rule = Arc::new(self.boundaries[which].rule.clone());
        self.store.one(Op::Take, &Check { rule, cost, ..self.check.clone() }, now)
    }

    /// Returns the window of a boundary: its start, its end, and the end of the next one.
    fn window(&self, which: usize, now: i64) -> [i64; 3] {
        let params = self.boundaries[which].rule.params(now);
        [params[2], params[3], params[4]]
    }

    /// Returns the units charged since a time, by one boundary or by all.
    fn used(&self, from: i64, by: Option<usize>) -> i64 {
        let counts = |charge: &&ModelCharge| charge.at >= from && by.is_none_or(|by| charge.by == by);
        self.charges.iter().filter(counts).map(|charge| charge.cost).sum()
    }

    /// Notes that a boundary decides, and returns when its record began to count.
    fn note(&mut self, which: usize, now: i64) -> i64 {
        let [start, end, next_end] = self.window(which, now);
        let boundary = &mut self.boundaries[which];
        // Its record was dropped, because another window of it has passed.
        if now >= boundary.counts_until {
            boundary.since = None;
        }
        boundary.counts_until = next_end.min(end + (end - start));
        *boundary.since.get_or_insert(now)
    }

    fn request(&mut self, which: usize, cost: i64, limit: i64) -> Result<Answer, TestCaseError> {
        let [start, end, _] = self.window(which, self.now);
        let is_memory = matches!(self.store, TimedStore::Memory(_));
        if is_memory && self.store.stored_state(&self.check.key, self.now).is_none() {
            self.boundaries.iter_mut().for_each(|boundary| boundary.since = None);
        }
        let answer = self.ask(which, cost, self.now);
        let since = self.note(which, self.now);
        let own = self.used(start, Some(which));
        let all = self.used(start, None);
        if answer.admitted {
            prop_assert!(own + cost <= limit, "{own} units, and {cost} more at {}", self.now);
            self.charges.push(ModelCharge { at: self.now, cost, by: which });
        } else {
            // A window that it knows from the start is refused by its own charges only. Of another it may be those of
            // a window that another boundary began before.
            let others = (0..self.boundaries.len()).filter(|other| *other != which);
            let most = others.map(|other| self.used(self.window(other, self.now)[0], None)).max().unwrap_or(0);
            let is_known = is_memory && since < start;
            let known = if is_known { all } else { all.max(most) };
            prop_assert!(known + cost > limit, "refused at {known} of {limit} units, {} at {}", cost, self.now);
            prop_assert!((1..=end - self.now).contains(&answer.retry_ms), "{answer:?}");
        }
        Ok(answer)
    }

    /// After the stated wait, the request is admitted, whatever else was refused meanwhile.
    fn await_refused(&mut self, which: usize, cost: i64, wait_ms: i64, limit: i64) -> Result<(), TestCaseError> {
        let until = self.now + wait_ms;
        for part in 1..=3 {
            let now = self.now + (wait_ms - 1) * part / 3;
            for other in 0..self.boundaries.len() {
                prop_assert!(!self.ask(other, limit + 1, now).admitted);
                self.note(other, now);
            }
        }
        self.now = until;
        prop_assert!(self.request(which, cost, limit)?.admitted, "the wait was {wait_ms} ms, until {until}");
        Ok(())
    }
}

type Step = (usize, i64, i64, bool);

fn walk(store: &TimedStore, case: usize, limit: i64, steps: &[Step]) -> Result<(), TestCaseError> {
    let (unit, scale, lines) = BOUNDARIES[case];
    let mut key = Key::new(store, &rand::random::<u64>().to_string(), limit, (unit, lines));
    for (which, step, cost, waits) in steps {
        key.now += step * scale / 8;
        let (which, cost) = (which % key.boundaries.len(), (*cost).min(limit));
        let answer = key.request(which, cost, limit)?;
        if *waits && !answer.admitted {
            key.await_refused(which, cost, answer.retry_ms, limit)?;
        }
    }
    Ok(())
}

#[test]
fn boundaries_that_alternate_neither_starve_a_key_nor_add_up() {
    let stores = [(TimedStore::Memory(MemoryStore::new(1_000_000)), 1500), (TimedStore::redis_on_call_time(), 40)];
    for (store, cases) in &stores {
        let steps = prop::collection::vec(
            (0..4_usize, prop_oneof![2 => Just(0), 3 => 0..9_i64, 1 => 0..90_i64], 1..4_i64, any::<bool>()),
            1..60,
        );
        let case = (0..BOUNDARIES.len(), 1..6_i64, steps);
        let config = Config { cases: *cases, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&case, |(case, limit, steps)| walk(store, case, limit, &steps))
            .unwrap_or_else(|failure| panic!("{failure:?}"));
    }
}

/// Two days for one key: the budget is used up before the second month begins, and both keep asking.
#[test]
fn a_month_that_begins_is_not_used_up_by_that_of_another_day() {
    let ms = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    on_both(|store| {
        let key = Key::new(store, "days", 3, ("month", &["resets_on = 14", "resets_on = 15"]));
        let turn = ms("2027-01-15T00:00:00Z");
        let ask = |which, now| {
            let answer = key.ask(which, 1, now);
            (answer.admitted, answer.retry_ms)
        };
        assert_eq!([1, 2, 3].map(|_| ask(0, turn - 9000).0), [true; 3]);
        assert_eq!(ask(1, turn - 3000), (false, 3000), "its month ends sooner");
        assert_eq!(ask(0, turn - 2000), (false, ms("2027-02-14T00:00:00Z") - turn + 2000));
        assert!(ask(1, turn + 1000).0, "as the wait said");
        // Half a year of refused requests under both days changes nothing.
        let admitted = (1..180).flat_map(|day| [0, 1].map(|which| (which, turn + day * DAY_MS + 5000)));
        let admitted = admitted.filter(|(which, now)| key.ask(*which, 1, *now).admitted).count();
        assert!((15..=6 * 6).contains(&admitted), "{admitted} in six months of each day");
    });
}

/// A day that is new in the middle of its month keeps what was used, until the month by the other day has ended.
#[test]
fn a_changed_day_keeps_what_was_used_until_the_old_month_ends() {
    let ms = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    on_both(|store| {
        let key = Key::new(store, "changed", 3, ("month", &["resets_on = 15", "resets_on = 20"]));
        let now = ms("2026-11-15T09:00:00Z");
        assert_eq!([1, 2, 3].map(|_| key.ask(0, 1, now).admitted), [true; 3]);
        let noon = ms("2026-11-20T12:00:00Z");
        assert_eq!(key.ask(1, 1, noon).retry_ms, ms("2026-12-15T00:00:00Z") - noon);
        assert!(!key.ask(1, 1, ms("2026-12-14T23:59:59Z")).admitted);
        assert!(key.ask(1, 1, ms("2026-12-15T00:00:00Z")).admitted);
    });
}
