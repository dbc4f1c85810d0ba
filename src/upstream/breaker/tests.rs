//! The state machine in virtual time: single transitions, and random histories against what must always be true.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::upstream::Fraction;
use crate::upstream::breaker::machine::{Admission, BreakerMachine, BreakerPhase, BreakerRule, OpenCondition, Ticket};
use crate::upstream::breaker::window::CallReport;
use crate::upstream::breaker::{BreakerKind, CircuitBreaker};
use crate::upstream::eject::Blame;

const RULE: BreakerRule = BreakerRule {
    slow_ms: Some(1_000),
    slow_ratio: Fraction::HALF,
    error_ratio: Some(Fraction::HALF),
    errors: None,
    window_ms: 10_000,
    min_requests: 10,
    open_for_ms: 5_000,
    probes: 3,
    ramp_ms: 10_000,
};

fn result(is_slow: bool, is_error: bool, client: u64) -> CallReport {
    CallReport { is_first: true, is_slow, is_error, client: Blame::Client(client) }
}

fn ticket(machine: &mut BreakerMachine, rule: &BreakerRule, now_ms: u64) -> Ticket {
    match machine.admit(rule, now_ms, Blame::Client(0)) {
        Admission::Admitted(ticket) => ticket,
        Admission::Refused { wait_ms } => panic!("refused for {wait_ms} ms: {machine:?}"),
    }
}

fn wait(machine: &mut BreakerMachine, rule: &BreakerRule, now_ms: u64) -> Option<u64> {
    match machine.admit(rule, now_ms, Blame::Client(0)) {
        Admission::Admitted(_) => None,
        Admission::Refused { wait_ms } => Some(wait_ms),
    }
}

/// Runs requests of different clients to the end, one after the other.
fn run(machine: &mut BreakerMachine, rule: &BreakerRule, now_ms: u64, results: &[(bool, bool)]) {
    for (client, (is_slow, is_error)) in results.iter().enumerate() {
        let ticket = ticket(machine, rule, now_ms);
        machine.report(rule, now_ms, ticket, &result(*is_slow, *is_error, client as u64));
    }
}

fn phase(machine: &BreakerMachine, rule: &BreakerRule, now_ms: u64) -> BreakerPhase {
    machine.describe(rule, now_ms).phase
}

/// A breaker that opened at 0.
fn opened(rule: &BreakerRule) -> BreakerMachine {
    let mut machine = BreakerMachine::default();
    run(&mut machine, rule, 0, &[(false, true); 10]);
    assert_eq!(phase(&machine, rule, 0), BreakerPhase::Open);
    machine
}

#[test]
fn each_condition_opens_at_its_bound_and_not_before() {
    let (good, slow, bad) = ((false, false), (true, false), (false, true));
    let none = BreakerRule { slow_ms: None, error_ratio: None, ..RULE };
    for (rule, kind, others, most, condition) in [
        (BreakerRule { slow_ms: Some(1), ..none }, slow, good, 10, OpenCondition::SlowRatio),
        (BreakerRule { error_ratio: Some(Fraction::HALF), ..none }, bad, slow, 10, OpenCondition::ErrorRatio),
        (BreakerRule { errors: Some(7), ..none }, bad, slow, 7, OpenCondition::Errors),
    ] {
        let mut machine = BreakerMachine::default();
        run(&mut machine, &rule, 0, &[others; 10]);
        run(&mut machine, &rule, 0, &vec![kind; most - 1]);
        assert_eq!(phase(&machine, &rule, 0), BreakerPhase::Closed, "{condition:?}");
        run(&mut machine, &rule, 0, &[kind]);
        let report = machine.describe(&rule, 1_000);
        assert_eq!((report.phase, report.opens_for_ms), (BreakerPhase::Open, Some(4_000)), "{condition:?}");
        assert_eq!(report.cause.map(|cause| cause.condition), Some(condition));
    }
    // Too few requests decide nothing, and those of long ago are forgotten.
    let mut machine = BreakerMachine::default();
    run(&mut machine, &RULE, 0, &[bad; 9]);
    run(&mut machine, &RULE, 10_001, &[bad; 9]);
    assert_eq!(phase(&machine, &RULE, 10_001), BreakerPhase::Closed);
}

#[test]
fn only_probes_decide_and_then_requests_ramp_up() {
    let mut machine = BreakerMachine::default();
    let stragglers: Vec<Ticket> = (0..20).map(|_| ticket(&mut machine, &RULE, 0)).collect();
    run(&mut machine, &RULE, 0, &[(false, true); 10]);
    assert_eq!(wait(&mut machine, &RULE, 4_999), Some(1));
    let probes: Vec<Ticket> = (0..3).map(|_| ticket(&mut machine, &RULE, 5_000)).collect();
    assert_eq!(wait(&mut machine, &RULE, 5_000), Some(1_000));
    // Results of requests from before the opening change nothing, good or bad.
    let before = format!("{machine:?}");
    for (place, straggler) in stragglers.iter().enumerate() {
        machine.report(&RULE, 5_001, *straggler, &result(false, place % 2 == 0, 50 + place as u64));
        machine.return_ticket(*straggler);
    }
    assert_eq!(format!("{machine:?}"), before);
    probes[..2].iter().for_each(|probe| machine.report(&RULE, 6_000, *probe, &result(false, false, 1)));
    assert_eq!(phase(&machine, &RULE, 6_000), BreakerPhase::HalfOpen);
    machine.report(&RULE, 6_000, probes[2], &result(false, true, 2));
    assert_eq!(phase(&machine, &RULE, 6_000), BreakerPhase::Ramp, "one of three is below the half");
    // Over the ramp, between 10 % and 100 % pass: 55 % on average.
    let admitted = (6_000..16_000).filter(|now_ms| wait(&mut machine, &RULE, *now_ms).is_none()).count();
    assert!((5_400..=5_600).contains(&admitted), "{admitted}");
    let first = (0..1_000).filter(|_| wait(&mut machine, &RULE, 16_000).is_none()).count();
    assert_eq!((first, phase(&machine, &RULE, 16_000)), (1_000, BreakerPhase::Closed));
    assert!(machine.open_epoch().is_some());
}

#[test]
fn failed_probes_open_it_again_and_a_ramp_that_fails_too() {
    let mut machine = opened(&RULE);
    let probes: Vec<Ticket> = (0..3).map(|_| ticket(&mut machine, &RULE, 5_000)).collect();
    machine.report(&RULE, 5_100, probes[0], &result(false, true, 1));
    assert_eq!(phase(&machine, &RULE, 5_100), BreakerPhase::HalfOpen);
    machine.report(&RULE, 5_200, probes[1], &result(true, false, 2));
    assert_eq!(phase(&machine, &RULE, 5_200), BreakerPhase::HalfOpen, "one slow, one error: neither is half");
    machine.report(&RULE, 5_300, probes[2], &result(false, true, 3));
    assert_eq!(wait(&mut machine, &RULE, 5_300), Some(5_000));
    assert!(machine.describe(&RULE, 5_300).cause.is_some_and(|cause| cause.were_probes && cause.failed == 2));

    let mut machine = opened(&RULE);
    run(&mut machine, &RULE, 5_000, &[(false, false); 3]);
    assert_eq!(phase(&machine, &RULE, 5_000), BreakerPhase::Ramp);
    let admitted: Vec<Ticket> = (0..100)
        .filter_map(|_| match machine.admit(&RULE, 6_000, Blame::Client(0)) {
            Admission::Admitted(ticket) => Some(ticket),
            Admission::Refused { .. } => None,
        })
        .collect();
    admitted.iter().zip(0..).for_each(|(ticket, n)| machine.report(&RULE, 6_500, *ticket, &result(false, true, n)));
    assert_eq!(phase(&machine, &RULE, 6_500), BreakerPhase::Open);
}

#[test]
fn lost_and_returned_probes_never_leave_it_half_open() {
    let mut machine = opened(&RULE);
    let lost: Vec<Ticket> = (0..3).map(|_| ticket(&mut machine, &RULE, 5_000)).collect();
    assert!(wait(&mut machine, &RULE, 9_999).is_some());
    // Their places are free after `open_for`. A late result still counts, because it belongs to a probe.
    let next = ticket(&mut machine, &RULE, 10_000);
    machine.return_ticket(next);
    machine.return_ticket(next);
    machine.report(&RULE, 10_000, lost[0], &result(false, false, 1));
    run(&mut machine, &RULE, 10_000, &[(false, false); 2]);
    assert_eq!(phase(&machine, &RULE, 10_000), BreakerPhase::Ramp);
}

#[test]
fn a_slow_probe_counts_once_and_its_late_error_is_added() {
    let rule = BreakerRule { probes: 2, ..RULE };
    let mut machine = opened(&rule);
    let [one, two] = [0, 1].map(|_| ticket(&mut machine, &rule, 5_000));
    machine.report(&rule, 6_000, one, &result(true, false, 1));
    machine.report(&rule, 6_500, one, &CallReport { is_first: false, ..result(false, true, 1) });
    assert_eq!(phase(&machine, &rule, 6_500), BreakerPhase::HalfOpen, "the other has no result");
    machine.report(&rule, 6_600, two, &result(false, false, 2));
    // One of two is slow, which is the half; but it met one client, and another was served.
    assert_eq!(phase(&machine, &rule, 6_600), BreakerPhase::Ramp);
}

/// Runs random histories of clients, servers and clocks.
#[test]
fn random_histories_keep_the_promises() {
    let seeds = if std::env::var_os("SLUICEGATE_SOAK").is_some() { 20_000 } else { 300 };
    for seed in 0..seeds {
        let mut random = SmallRng::seed_from_u64(seed);
        let rule = BreakerRule {
            errors: random.random_bool(0.5).then(|| random.random_range(1..20)),
            min_requests: random.random_range(1..20),
            probes: random.random_range(1..6),
            ramp_ms: *[0, 1, 3_000].get(random.random_range(0..3)).unwrap_or(&0),
            ..RULE
        };
        let (mut machine, mut now_ms, mut held) = (BreakerMachine::default(), 0_u64, Vec::<Ticket>::new());
        let (mut probes_of_epoch, mut epoch) = (Vec::<u64>::new(), 0);
        for _ in 0..400 {
            now_ms += if random.random_bool(0.1) { random.random_range(0..6_000) } else { random.random_range(0..50) };
            let before = machine.describe(&rule, now_ms);
            match random.random_range(0..10) {
                0..5 => {
                    let admission = machine.admit(&rule, now_ms, Blame::Client(0));
                    if machine.epoch() != epoch {
                        (epoch, probes_of_epoch) = (machine.epoch(), Vec::new());
                    }
                    if let Admission::Admitted(ticket) = admission {
                        assert_ne!(before.phase, BreakerPhase::Open, "seed {seed}");
                        if ticket.probe.is_some() {
                            probes_of_epoch.push(now_ms);
                        }
                        held.push(ticket);
                    } else {
                        assert_ne!(before.phase, BreakerPhase::Closed, "seed {seed}");
                    }
                }
                5..9 if !held.is_empty() => {
                    let place = random.random_range(0..held.len());
                    // Some tickets report twice, and some report from long ago.
                    let ticket = if random.random_bool(0.8) { held.swap_remove(place) } else { held[place] };
                    let report = result(random.random_bool(0.3), random.random_bool(0.3), random.random_range(0..3));
                    let shown = format!("{machine:?}");
                    let is_old = ticket.epoch != machine.epoch();
                    machine.report(&rule, now_ms, ticket, &report);
                    assert!(!is_old || format!("{machine:?}") == shown, "seed {seed}: a straggler changed it");
                }
                _ if !held.is_empty() => {
                    let ticket = held.swap_remove(random.random_range(0..held.len()));
                    machine.return_ticket(ticket);
                    // Its place may be taken again.
                    if ticket.epoch == epoch && ticket.probe.is_some() {
                        probes_of_epoch.pop();
                    }
                }
                _ => {}
            }
            let running = probes_of_epoch.iter().filter(|begun| now_ms < **begun + rule.open_for_ms).count();
            assert!(running <= rule.probes as usize, "seed {seed}: {running} probes at once");
        }
        // A healthy upstream closes it, whatever is still held: never stuck.
        let mut steps = 0;
        while phase(&machine, &rule, now_ms) != BreakerPhase::Closed {
            now_ms += 500;
            steps += 1;
            assert!(steps < 60, "seed {seed}: stuck in {machine:?}");
            for _ in 0..20 {
                if let Admission::Admitted(ticket) = machine.admit(&rule, now_ms, Blame::Client(0)) {
                    machine.report(&rule, now_ms, ticket, &result(false, false, random.random_range(0..3)));
                }
            }
        }
    }
}

#[test]
fn workers_take_exactly_the_probes_and_dropped_permits_return_them() {
    let breaker = Arc::new(CircuitBreaker::new(BreakerKind::Upstream, "app", RULE));
    for client in 0..10 {
        breaker.admit(Some(1_000), || 0, Blame::Client(client)).unwrap().report_end(0, false, true);
    }
    assert_eq!(breaker.admit(None, || 1_000, Blame::Server).err().map(|refusal| refusal.wait_ms), Some(4_000));
    for _ in 0..20 {
        let admitted: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..50).filter_map(|_| breaker.admit(None, || 6_000, Blame::Server).ok()).collect())
                })
                .collect();
            let held: Vec<Vec<_>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            held.iter().map(Vec::len).sum()
        });
        assert_eq!(admitted, 3);
    }
    let mut permits: Vec<_> = (0..3).map(|n| breaker.admit(None, || 6_000, Blame::Client(n)).unwrap()).collect();
    permits.iter_mut().for_each(|permit| permit.report_end(6_000, false, false));
    drop(permits);
    assert_eq!(breaker.describe(6_000).phase, BreakerPhase::Ramp);
    // The rule of a new config keeps the phase.
    breaker.apply_rule(BreakerRule { ramp_ms: 0, ..RULE }, 6_000);
    assert_eq!(breaker.describe(6_000).phase, BreakerPhase::Closed);
    assert!(breaker.refused() > 3_000);
}

/// One client fails with every request, and takes every probe that it can get. Other clients are served again after
/// its first probes have failed, and it cannot end the ramp.
#[test]
fn one_client_cannot_keep_it_open() {
    const ATTACKER: u64 = 99;
    let mut machine = opened(&RULE);
    let ask = |machine: &mut BreakerMachine, now_ms: u64, client: u64| {
        let Admission::Admitted(ticket) = machine.admit(&RULE, now_ms, Blame::Client(client)) else { return false };
        machine.report(&RULE, now_ms, ticket, &result(false, client == ATTACKER, client));
        true
    };
    let served_after = (0..60_000_u64).step_by(100).find(|now_ms| {
        for _ in 0..10 {
            ask(&mut machine, *now_ms, ATTACKER);
        }
        now_ms % 500 == 0 && ask(&mut machine, *now_ms, now_ms / 500 % 4)
    });
    assert!(served_after.is_some_and(|at_ms| at_ms <= 2 * RULE.open_for_ms + 500), "{served_after:?}");
    let mut served = 0;
    for now_ms in (12_000..40_000_u64).step_by(100) {
        for _ in 0..3 {
            ask(&mut machine, now_ms, ATTACKER);
        }
        served += u32::from(now_ms >= 24_000 && ask(&mut machine, now_ms, now_ms / 100 % 4));
        if now_ms < 24_000 {
            ask(&mut machine, now_ms, now_ms / 100 % 4);
        }
    }
    assert_eq!(served, 160, "after the ramp everybody is served");
}

/// All requests may come from one address, such as that of a load balancer.
#[test]
fn a_client_that_is_alone_gets_probes_at_once() {
    let mut machine = opened(&RULE);
    for open in 1..4 {
        let now_ms = 5_000 * open;
        for _ in 0..RULE.probes {
            let Admission::Admitted(ticket) = machine.admit(&RULE, now_ms, Blame::Client(7)) else { panic!("{open}") };
            machine.report(&RULE, now_ms, ticket, &result(false, true, 7));
        }
        assert_eq!(phase(&machine, &RULE, now_ms), BreakerPhase::Open);
    }
}

/// Simulates requests of clients in turn, one every 10 ms. `attackers` fail on purpose whenever they like; the others
/// are served if they are admitted. Returns, for each second, the fraction of the other clients' requests that were
/// served.
fn attack(rule: &BreakerRule, attackers: u64, others: u64, seconds: u64) -> Vec<f64> {
    let mut machine = opened(rule);
    let mut served = vec![0; usize::try_from(seconds).unwrap()];
    for now_ms in (0..seconds * 1000).step_by(10) {
        let mut ask = |client: u64, fails: bool| {
            let Admission::Admitted(ticket) = machine.admit(rule, now_ms, Blame::Client(client)) else { return false };
            machine.report(rule, now_ms, ticket, &result(false, fails, client));
            true
        };
        // They are always first.
        for attacker in 0..attackers {
            ask(1000 + attacker, true);
        }
        let client = now_ms / 10 % others;
        served[usize::try_from(now_ms / 1000).unwrap()] += u32::from(ask(client, false));
    }
    served.into_iter().map(|count| f64::from(count) / 100.0).collect()
}

/// Clients below the bound of the manual keep the breaker open only until each of them has spent its probe, and cannot
/// open it again. With more than that, they can.
#[test]
fn few_clients_cannot_keep_it_open() {
    let errors = BreakerRule { slow_ms: None, error_ratio: None, errors: Some(10), ..RULE };
    for (rule, attackers, others) in [(RULE, 1, 20), (errors, 1, 20), (errors, 2, 20), (errors, 3, 40)] {
        let served = attack(&rule, attackers, others, 120);
        let first = served.iter().position(|part| *part > 0.0).unwrap();
        assert!(first as u64 <= 5 * (attackers + 1), "{attackers} keep it open for {first} s");
        let after = first + 11;
        assert!(served[after..].iter().all(|part| *part == 1.0), "{attackers} of {others}: {served:?}");
    }
    // Each half-open phase needs other clients, here two, until all have failed.
    let served = attack(&errors, 60, 400, 300);
    let first = served.iter().position(|part| *part > 0.0).unwrap();
    assert!((100..=5 * 31).contains(&first), "{first}");
    // A quarter of the clients, with half of the requests.
    let served = attack(&RULE, 7, 20, 120);
    assert!(served.iter().sum::<f64>() < 80.0, "{served:?}");
}
