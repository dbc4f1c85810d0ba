//! Each algorithm's stated bound, by random schedules against plain counting: bursts, idle times, costs of all sizes,
//! clocks that jump back. Only time that passes forwards counts: setting a clock back gives no units.

mod alternating_rules;
mod boundaries;
mod changing_rules;
mod corrections;
mod dates;
mod disagreeing_gateways;
mod parameters;
mod queue_flips;

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate::limiting::algorithm::calendar::CalendarUnit;
use sluicegate::limiting::algorithm::fixed_window::FixedWindow;
use sluicegate::limiting::algorithm::gcra::Gcra;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::algorithm::{Rule, State};
use sluicegate::limiting::answer::Answer;

const NOW: i64 = 1_795_000_000_000;

/// One arrival: how far the clock has moved since the last one, and the requested units.
type Arrival = (i64, i64);

/// An admitted charge.
#[derive(Clone, Copy, Debug)]
struct Charge {
    /// Time that has passed forwards since the start.
    lived: i64,
    cost: i64,
    receipt: i64,
    /// Start of the window that counts the charge, for algorithms with windows.
    start: i64,
}

/// A key whose state expires as in a store.
struct Client {
    rule: Rule,
    state: Option<(State, i64)>,
    now: i64,
    lived: i64,
    charges: Vec<Charge>,
}

impl Client {
    fn new(rule: Rule) -> Client {
        Client { rule, state: None, now: NOW, lived: 0, charges: Vec::new() }
    }

    fn arrive(&mut self, (step, cost): Arrival) -> Answer {
        self.now += step;
        self.lived += step.max(0);
        let now = self.now;
        let state = self.state.as_ref().filter(|(_, expires)| now < *expires).map(|(state, _)| state);
        let step = self.rule.decide(state, now, cost, 0);
        if let Some((state, ttl_ms)) = step.next {
            self.state = Some((state, now + ttl_ms));
        }
        if step.answer.admitted && cost > 0 {
            let text = self.state.as_ref().unwrap().0.text();
            let start = text.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
            self.charges.push(Charge { lived: self.lived, cost, receipt: step.answer.receipt, start });
        }
        step.answer
    }

    fn adjust(&mut self, delta: i64, receipt: i64) -> bool {
        let now = self.now;
        let state = self.state.as_ref().filter(|(_, expires)| now < *expires).map(|(state, _)| state);
        let Some((state, ttl_ms, _)) = self.rule.adjust(state, now, delta, receipt) else { return false };
        self.state = Some((state, now + ttl_ms));
        true
    }

    fn run(rule: Rule, arrivals: &[Arrival]) -> Client {
        let mut client = Client::new(rule);
        for arrival in arrivals {
            client.arrive(*arrival);
        }
        client
    }

    /// Asserts that every interval, of any length, admitted at most `bound` of its length in ms (1 for a single ms).
    fn assert_in_any_stretch(&self, bound: impl Fn(i64) -> Option<i64>) {
        for (first, from) in self.charges.iter().enumerate() {
            let mut sum = 0;
            for to in &self.charges[first..] {
                sum += to.cost;
                let length = to.lived - from.lived + 1;
                if let Some(bound) = bound(length) {
                    assert!(sum <= bound, "{sum} in {length} ms, at most {bound}: {:?} {:?}", self.rule, self.charges);
                }
            }
        }
    }

    fn assert_at_most_in_any(&self, window_ms: i64, most: i64) {
        self.assert_in_any_stretch(|length| (length <= window_ms).then_some(most));
    }
}

/// Steps around `scale` ms: none, a few ms, up to several `scale`, to its edges; some back by up to
/// `back` (0: none).
fn arrivals(scale: i64, limit: i64, back: i64) -> impl Strategy<Value = Vec<Arrival>> {
    let step = prop_oneof![
        4 => Just(0),
        3 => 0..=3_i64,
        3 => 0..=scale / 8 + 1,
        2 => 0..=scale + 1,
        1 => scale - 1..=scale + 1,
        1 => 0..=3 * scale,
        1 => -back.min(5)..=0,
        1 => -back..=0,
    ];
    let cost = prop_oneof![6 => 1..=3_i64, 2 => 1..=limit, 1 => Just(limit), 1 => 0..=limit + 2];
    prop::collection::vec((step, cost), 1..120)
}

/// Count, period and a schedule for it.
fn schedules(back: fn(i64) -> i64) -> impl Strategy<Value = (i64, i64, Vec<Arrival>)> {
    (1..40_i64, prop_oneof![1..20_i64, 20..3000_i64, Just(60_000)])
        .prop_flat_map(move |(limit, period)| (Just(limit), Just(period), arrivals(period, limit, back(period))))
}

fn far(_: i64) -> i64 {
    40_000_000
}

fn never(_: i64) -> i64 {
    0
}

fn within_the_period(period: i64) -> i64 {
    period
}

/// The same schedule with a clock that is never more than `most` behind its latest time.
fn lagging(arrivals: &[Arrival], most: i64) -> Vec<Arrival> {
    let mut lag = 0;
    let step = |(step, cost): &Arrival| {
        let step = (*step).max(lag - most);
        lag = (lag - step).max(0);
        (step, *cost)
    };
    arrivals.iter().map(step).collect()
}

/// Returns the bound of a rate: at most burst + rate x t in any `t` ms. The last ms of an interval has yet to pass.
fn rate_bound(rate: i64, per: i64, burst: i64) -> impl Fn(i64) -> Option<i64> {
    move |length| Some(burst + (length - 1) * rate / per)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn token_bucket_admits_its_burst_and_its_rate((burst, per, arrivals) in schedules(far), rate in 1..30_i64) {
        let rule = TokenBucket { rate, per_ms: per, burst, debt: 0, interval: false, empty: false, refunds: false };
        Client::run(Rule::TokenBucket(rule), &arrivals).assert_in_any_stretch(rate_bound(rate, per, burst));
    }

    #[test]
    fn gcra_admits_its_burst_and_its_rate((burst, per, arrivals) in schedules(far), rate in 1..30_i64) {
        let rule = Rule::Gcra(Gcra { rate, per_ms: per, burst, refunds: false });
        Client::run(rule, &arrivals).assert_in_any_stretch(rate_bound(rate, per, burst));
    }

    /// Both give the same answers, including waits, at any rate.
    #[test]
    fn gcra_decides_like_a_token_bucket(
        (burst, per, arrivals) in schedules(never),
        rate in prop_oneof![1..30_i64, 1000..5_000_000_i64],
    ) {
        let bucket = TokenBucket { rate, per_ms: per, burst, debt: 0, interval: false, empty: false, refunds: false };
        let (mut bucket, mut gcra) = (Client::new(Rule::TokenBucket(bucket)), Client::new(Rule::Gcra(Gcra { rate, per_ms: per, burst, refunds: false })));
        for arrival in arrivals {
            prop_assert_eq!(bucket.arrive(arrival), gcra.arrive(arrival));
        }
    }

    /// Compares the wait with a model in fractions of a millisecond, without rounding.
    #[test]
    fn gcra_is_exact((burst, per, arrivals) in schedules(never), rate in 1..5_000_000_i64) {
        let mut client = Client::new(Rule::Gcra(Gcra { rate, per_ms: per, burst, refunds: false }));
        // Theoretical arrival time in units of 1 / rate ms.
        let mut tat = 0_i128;
        for (step, cost) in arrivals {
            let answer = client.arrive((step, cost));
            let now = i128::from(client.now) * i128::from(rate);
            let (need, full) = (i128::from(cost * per), i128::from(burst * per));
            let new = tat.max(now) + need;
            prop_assert_eq!(answer.admitted, cost == 0 || new - now <= full);
            if answer.admitted {
                tat = new;
            } else if cost <= burst {
                let wait = new - full - now;
                prop_assert_eq!(i128::from(answer.retry_ms), (wait + i128::from(rate) - 1) / i128::from(rate));
            }
        }
    }

    #[test]
    fn a_fixed_window_from_its_first_hit_admits_its_limit((limit, window, arrivals) in schedules(far)) {
        let rule = Rule::FixedWindow(FixedWindow { limit, window_ms: window, clock: false });
        Client::run(rule, &arrivals).assert_at_most_in_any(window, 2 * limit);
    }

    #[test]
    fn a_fixed_window_of_the_clock_admits_its_limit((limit, window, arrivals) in schedules(within_the_period)) {
        let rule = Rule::FixedWindow(FixedWindow { limit, window_ms: window, clock: true });
        let client = Client::run(rule, &lagging(&arrivals, window));
        client.assert_at_most_in_any(window, 2 * limit);
        assert_each_window_holds(&client, limit);
    }

    #[test]
    fn a_strict_sliding_window_admits_its_limit_in_any_window(
        (limit, window, arrivals) in schedules(far),
        precision in 3..=60_i64,
    ) {
        let window = window.max(precision);
        Client::run(crate::support::limiting::rules::sliding(limit, window, precision), &arrivals).assert_at_most_in_any(window, limit);
    }

    /// The window refuses only costs that do not fit into the last window plus one part of it.
    #[test]
    fn a_strict_sliding_window_refuses_for_a_reason(
        (limit, window, arrivals) in schedules(never),
        precision in 3..=60_i64,
    ) {
        let window = window.max(precision);
        let part = (window + precision - 1) / precision;
        let mut client = Client::new(crate::support::limiting::rules::sliding(limit, window, precision));
        for arrival in arrivals {
            let before: Vec<Charge> = client.charges.clone();
            if !client.arrive(arrival).admitted {
                let since = client.lived - window - part;
                let sum: i64 = before.iter().filter(|charge| charge.lived > since).map(|charge| charge.cost).sum();
                prop_assert!(sum + arrival.1 > limit, "{sum} of {limit} and {} refused", arrival.1);
            }
        }
    }

    /// An interval of x ms within a window admits at most limit x (1 + x / window), hence less than twice the limit in
    /// a whole window, and no burst above the limit.
    #[test]
    fn a_weighted_sliding_window_admits_less_than_twice_its_limit((limit, window, arrivals) in schedules(far)) {
        let window = window.max(2);
        let client = Client::run(crate::support::limiting::rules::sliding(limit, window, 2), &arrivals);
        client.assert_in_any_stretch(|length| {
            (length <= window).then(|| limit + limit * (length - 1) / window)
        });
    }

    /// The formula of the weighted counter in whole numbers, from a plain list of all charges.
    #[test]
    fn a_weighted_sliding_window_is_exact((limit, window, arrivals) in schedules(never)) {
        let window = window.max(2);
        let mut client = Client::new(crate::support::limiting::rules::sliding(limit, window, 2));
        for (step, cost) in arrivals {
            let (now, charges) = (client.now + step, client.charges.clone());
            let (id, into) = (now / window, now % window);
            let sum = |of: i64| -> i64 {
                charges.iter().filter(|charge| charge.receipt / window == of).map(|charge| charge.cost).sum()
            };
            let fits = (sum(id) + cost) * window + sum(id - 1) * (window - into) <= limit * window;
            prop_assert_eq!(client.arrive((step, cost)).admitted, cost == 0 || fits);
        }
    }

    /// After any change of the numbers, no interval as long as the shorter window admits more than the larger limit,
    /// and no charge that is still inside a window is forgotten.
    #[test]
    fn a_sliding_window_that_changes_forgets_nothing(
        (limit, window, arrivals) in schedules(never),
        other in (1..40_i64, 3..3000_i64, 3..=60_i64),
        precision in 3..=60_i64,
    ) {
        let window = window.max(precision);
        let (other_limit, other_window) = (other.0, other.1.max(other.2));
        let rules = [crate::support::limiting::rules::sliding(limit, window, precision), crate::support::limiting::rules::sliding(other_limit, other_window, other.2)];
        let mut client = Client::new(rules[0].clone());
        for (i, arrival) in arrivals.iter().enumerate() {
            client.rule = rules[i / 5 % 2].clone();
            client.arrive(*arrival);
        }
        client.assert_at_most_in_any(window.min(other_window), limit.max(other_limit));
    }

    #[test]
    fn a_calendar_window_admits_its_limit(
        limit in 1..40_i64,
        unit in prop::sample::select(vec![CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year]),
        steps in arrivals(1000, 40, 1000),
    ) {
        // Steps in thousandths of a window.
        let rule = crate::support::limiting::rules::calendar(limit, unit);
        let scale = unit.usual_ms() / 1200;
        let arrivals: Vec<Arrival> = steps.iter().map(|(step, cost)| (step * scale, *cost)).collect();
        let arrivals = lagging(&arrivals, 1000 * scale);
        let client = Client::run(rule, &arrivals);
        assert_each_window_holds(&client, limit);
        if arrivals.iter().all(|(step, _)| *step >= 0) {
            // Compares with an independent calendar: the date that the clock shows.
            let mut dates: HashMap<String, i64> = HashMap::new();
            for charge in &client.charges {
                *dates.entry(label(unit, NOW + charge.lived)).or_default() += charge.cost;
            }
            prop_assert!(dates.values().all(|sum| *sum <= limit), "{dates:?}");
        }
    }
}

/// Returns the units that a client can use at once.
fn count_admitted(client: &mut Client) -> usize {
    (0..1000).take_while(|_| client.arrive((0, 1)).admitted).count()
}

/// Live changes: used units stay used, and additional units are available at once.
#[test]
fn a_changed_number_keeps_the_usage() {
    let minute = 60_000;
    let gcra = |rate, per_ms, burst| Rule::Gcra(Gcra { rate, per_ms, burst, refunds: false });
    let sliding = |limit, precision| crate::support::limiting::rules::sliding(limit, minute, precision);
    let calendar = crate::support::limiting::rules::calendar;
    for (before, after, got) in [
        (gcra(10, 1000, 10), gcra(10, 1000, 15), 5),
        (gcra(10, 1000, 10), gcra(1, 1000, 10), 0),
        (gcra(1, 1000, 10), gcra(10, 1000, 25), 15),
        (gcra(7, 1000, 10), gcra(3, 1100, 12), 2),
        (gcra(10, 1000, 10), gcra(10, 1000, 3), 0),
        (sliding(10, 2), sliding(15, 2), 5),
        (sliding(10, 60), sliding(15, 60), 5),
        (sliding(10, 60), sliding(3, 60), 0),
        (sliding(10, 2), sliding(15, 60), 5),
        (sliding(10, 60), sliding(15, 2), 5),
        (sliding(10, 60), crate::support::limiting::rules::sliding(12, 50_000, 7), 2),
        (calendar(10, CalendarUnit::Day), calendar(15, CalendarUnit::Day), 5),
        (calendar(10, CalendarUnit::Day), calendar(3, CalendarUnit::Day), 0),
        // Units used today were used this month; of units used this month it is unknown whether they were used today.
        (calendar(10, CalendarUnit::Day), calendar(15, CalendarUnit::Month), 5),
        (calendar(10, CalendarUnit::Month), calendar(15, CalendarUnit::Day), 15),
    ] {
        let mut client = Client::new(before);
        assert_eq!(count_admitted(&mut client), 10);
        client.rule = after;
        assert_eq!(count_admitted(&mut client), got, "{:?}", client.rule);
    }
    // Usage above a reduced burst must be refilled as well.
    let mut client = Client::new(gcra(1, 1000, 10));
    count_admitted(&mut client);
    client.rule = gcra(1, 1000, 3);
    assert_eq!(client.arrive((0, 1)).retry_ms, 8000);
    assert!(!client.arrive((7999, 1)).admitted && client.arrive((1, 1)).admitted);
}

fn assert_each_window_holds(client: &Client, limit: i64) {
    let mut windows: HashMap<i64, i64> = HashMap::new();
    for charge in &client.charges {
        *windows.entry(charge.start).or_default() += charge.cost;
    }
    assert!(windows.values().all(|sum| *sum <= limit), "{windows:?} of {limit}");
}

fn label(unit: CalendarUnit, ms: i64) -> String {
    let zone = jiff::tz::TimeZone::get("America/New_York").unwrap();
    let format = match unit {
        CalendarUnit::Hour => "%F %H %z",
        CalendarUnit::Day => "%F",
        CalendarUnit::Week => "%G-%V",
        CalendarUnit::Month => "%Y-%m",
        CalendarUnit::Year => "%Y",
    };
    jiff::Timestamp::from_millisecond(ms).unwrap().to_zoned(zone).strftime(format).to_string()
}
