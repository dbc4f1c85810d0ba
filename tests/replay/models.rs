//! Every algorithm against a straightforward model of it: the same verdict and the same wait for
//! each request of a made-up log.

use std::collections::HashMap;

use super::generated_log::{ReplayedRequest, START_MS, config, log, traffic};
use super::workdir::Dir;

/// Charges of one client: time, cost, and end of the request.
type Past = Vec<(i64, i64, i64)>;
/// Decides whether a cost is admitted at a time after a past. Returns the wait if it is.
type Model = fn(&Past, i64, i64) -> Option<i64>;

fn units(past: &Past, counts: impl Fn(i64) -> bool) -> i64 {
    past.iter().filter(|(at_ms, ..)| counts(*at_ms)).map(|(_, cost, _)| cost).sum()
}

fn when(admitted: bool) -> Option<i64> {
    admitted.then_some(0)
}

/// Thousandths of a token, two for each ms, at most 5000.
fn tokens(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let (mut level, mut then) = (5000, START_MS);
    for (at_ms, cost, _) in past {
        level = (level + (at_ms - then) * 2).min(5000) - cost * 1000;
        then = *at_ms;
    }
    when((level + (now - then) * 2).min(5000) >= cost * 1000)
}

/// The theoretical arrival time moves on by 500 ms a unit, and may be 2500 ms ahead.
fn arrival(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let expected = past.iter().fold(0, |expected: i64, (at_ms, cost, _)| expected.max(*at_ms) + cost * 500);
    when(expected.max(now) + cost * 500 - now <= 2500)
}

/// A window starts with the first request after the one before.
fn window(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let mut start = i64::MIN / 2;
    for (at_ms, ..) in past {
        start = if *at_ms >= start + 5000 { *at_ms } else { start };
    }
    let taken = if now >= start + 5000 { 0 } else { units(past, |at_ms| at_ms >= start) };
    when(taken + cost <= 6)
}

/// Hours of Kolkata, five hours and a half ahead.
fn hour(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let number = |at_ms: i64| (at_ms + 19_800_000) / 3_600_000;
    when(units(past, |at_ms| number(at_ms) == number(now)) + cost <= 40)
}

/// Exactly what the last five seconds hold, and one ms more.
fn last_five_seconds(past: &Past, now: i64, cost: i64) -> Option<i64> {
    when(units(past, |at_ms| at_ms >= now - 5000) + cost <= 6)
}

/// The previous window counts by the part of it that the last five seconds still cover.
fn weighted(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let this = units(past, |at_ms| at_ms / 5000 == now / 5000);
    let before = units(past, |at_ms| at_ms / 5000 == now / 5000 - 1);
    when((this + cost) * 5000 + before * (5000 - now % 5000) <= 6 * 5000)
}

/// Parts of a second count as long as the window touches one of their milliseconds.
fn parts(past: &Past, now: i64, cost: i64) -> Option<i64> {
    when(units(past, |at_ms| (at_ms / 1000 + 1) * 1000 - 1 > now - 5000) + cost <= 6)
}

/// Slots 500 ms apart, of which the last may be 1500 ms ahead.
fn slots(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let free = past.iter().fold(0, |free: i64, (at_ms, cost, _)| free.max(*at_ms) + cost * 500);
    let wait = (free - now).max(0);
    (wait + (cost - 1) * 500 <= 1500).then_some(wait)
}

fn in_flight(past: &Past, now: i64, cost: i64) -> Option<i64> {
    let held: i64 = past.iter().filter(|(_, _, end_ms)| *end_ms > now).map(|(_, cost, _)| cost).sum();
    when(held + cost <= 4)
}

#[test]
fn token_bucket() {
    agree("rate = \"2/s\"\nburst = 5", tokens, 900);
}

#[test]
fn gcra() {
    agree("algorithm = \"gcra\"\nrate = \"2/s\"\nburst = 5", arrival, 900);
}

#[test]
fn fixed_window() {
    agree("algorithm = \"fixed_window\"\nrate = \"6/5s\"", window, 900);
}

#[test]
fn calendar() {
    agree("algorithm = \"calendar\"\nrate = \"40/hour\"\nzone = \"Asia/Kolkata\"", hour, 120_000);
}

#[test]
fn sliding_log() {
    agree("algorithm = \"sliding_log\"\nrate = \"6/5s\"", last_five_seconds, 900);
}

#[test]
fn sliding_window_of_two_counters() {
    agree("algorithm = \"sliding_window\"\nrate = \"6/5s\"", weighted, 900);
}

#[test]
fn sliding_window_of_five_parts() {
    agree("algorithm = \"sliding_window\"\nrate = \"6/5s\"\nprecision = 5", parts, 900);
}

#[test]
fn leaky_bucket() {
    agree("algorithm = \"leaky_bucket\"\nrate = \"2/s\"\nqueue = \"1500ms\"", slots, 900);
}

#[test]
fn concurrency() {
    agree("algorithm = \"concurrency\"\nin_flight = 4", in_flight, 900);
}

#[track_caller]
fn agree(limit: &str, model: Model, lull_ms: u64) {
    let (text, asked) = log(traffic(7, 1500, lull_ms), true);
    let verdicts = Dir::new(&config(limit)).verdicts(&text);
    let mut pasts: HashMap<u32, Past> = HashMap::new();
    let (mut refused, mut delayed) = (0, 0);
    for (line, ReplayedRequest { at_ms, client, cost, duration_ms, status }) in asked {
        let past = pasts.entry(client).or_default();
        let wait = model(past, at_ms, cost);
        assert_eq!(
            verdicts.get(&line).copied().unwrap_or(Some(0)),
            wait,
            "line {line}: {cost} at {at_ms} for {duration_ms} ms with {status}, of client {client}; before: {:?}",
            &past[past.len().saturating_sub(10)..],
        );
        match wait {
            Some(wait) => {
                delayed += u32::from(wait > 0);
                past.push((at_ms, cost, at_ms + duration_ms));
            }
            None => refused += 1,
        }
    }
    assert!((100..1400).contains(&refused), "the traffic contains admitted and refused requests: {refused} refused");
    assert!(delayed > 100 || !limit.contains("queue"), "{delayed} delayed");
}
