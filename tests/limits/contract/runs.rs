//! Random runs of one limit on a store, and how they are compared with a sentence.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::config::{self, Config};
use sluicegate::contract::clauses::{Clause, ClauseKind, UnitBound};
use sluicegate::contract::report::Contract;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Limit;

use crate::support::limiting::check;
use crate::support::limiting::timed_stores::TimedStore;

pub const NOW: i64 = 1_795_000_000_000;

/// A config with one limit that decides, and the sentences about it.
pub struct Case {
    pub config: Config,
    pub gateways: i64,
}

impl Case {
    /// A limit `l` with these lines, in Redis or in memory.
    pub fn new(lines: &str, more: &str, is_shared: bool, gateways: i64) -> Case {
        let store = if is_shared { "[store]\nurl = \"redis://127.0.0.1:1\"\n" } else { "" };
        let text = format!(
            "{store}[[route]]\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"base\", \"l\"]\n\
             [limit.l]\nkey = \"all\"\n{lines}\n[limit.base]\nkey = \"all\"\n{}\n{more}",
            if lines.contains("after") { lines.replace("after = \"base\"", "") } else { "rate = \"9/s\"".to_owned() }
        );
        let config =
            config::load_text("contract.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(false)));
        Case { config, gateways }
    }

    pub fn limit(&self) -> &Arc<Limit> {
        self.config.limits.find("l").unwrap()
    }

    pub fn clauses(&self) -> Vec<Clause> {
        Contract::new(&self.config, Some(self.gateways), |_| true).clauses_of("l").to_vec()
    }

    pub fn clause(&self, kind: ClauseKind) -> Clause {
        self.clauses().into_iter().find(|clause| clause.kind == kind).unwrap_or_else(|| panic!("no {kind:?}"))
    }
}

/// Random numbers of each algorithm, as lines of a config.
pub fn random_lines(algorithm: usize, rng: &mut StdRng) -> String {
    let (count, seconds) = (rng.random_range(1..30), rng.random_range(1..90));
    match algorithm {
        0 => {
            let (burst, debt) = (rng.random_range(1..30), rng.random_range(0..3));
            format!("rate = \"{count}/{seconds}s\"\nburst = {burst}\ndebt = {debt}")
        }
        1 => format!("rate = \"{count}/{seconds}s\"\nburst = {}\nrefill = \"interval\"", rng.random_range(1..30)),
        2 => format!("algorithm = \"gcra\"\nrate = \"{count}/{seconds}s\"\nburst = {}", rng.random_range(1..30)),
        3 => format!("algorithm = \"fixed_window\"\nrate = \"{count}/{seconds}s\""),
        4 => format!("algorithm = \"fixed_window\"\nrate = \"{count}/{seconds}s\"\nanchor = \"clock\""),
        5 => format!("algorithm = \"sliding_log\"\nrate = \"{count}/{seconds}s\""),
        6 => format!("algorithm = \"sliding_window\"\nrate = \"{count}/{seconds}s\""),
        7 => format!(
            "algorithm = \"sliding_window\"\nrate = \"{count}/{seconds}s\"\nprecision = {}",
            rng.random_range(3..30)
        ),
        8 => format!(
            "algorithm = \"leaky_bucket\"\nrate = \"{count}/{seconds}s\"\nqueue = \"{seconds}s\"\nnodelay = true"
        ),
        10 => {
            let burst = rng.random_range(2..30);
            let reserve = rng.random_range(1..burst);
            format!(
                "rate = \"{count}/{seconds}s\"\nburst = {burst}\nfair = {{ key = \"header:x-tenant\", reserve = {reserve} }}"
            )
        }
        _ => {
            let unit = ["hour", "day", "week", "month", "year"][rng.random_range(0..5)];
            format!("algorithm = \"calendar\"\nrate = \"{count}/{unit}\"\nzone = \"Australia/Lord_Howe\"")
        }
    }
}
pub const ALGORITHMS: usize = 11;

/// Admitted units, each with the time since the start.
#[derive(Default)]
pub struct Run {
    pub lived: i64,
    pub now: i64,
    pub charges: Vec<(i64, i64, Check, i64)>,
}

impl Run {
    pub fn begin(rng: &mut StdRng) -> Run {
        Run { now: NOW + rng.random_range(0..86_400_000), ..Run::default() }
    }

    /// Takes single units, or a few at a time, until the limit refuses.
    pub fn take_all(&mut self, store: &TimedStore, one: &Check, rng: &mut StdRng) {
        let most = one.rule.policy().quota + one.rule.params(0).get(3).copied().unwrap_or(0).clamp(0, 4);
        let cost = if rng.random_bool(0.8) { 1 } else { rng.random_range(1..4) };
        let count = most / cost + 2;
        let checks: Vec<Check> =
            (0..count).map(|_| Check { tag: rng.random_range(0..1 << 52), cost, ..one.clone() }).collect();
        let decisions: Vec<(Op, &[Check])> =
            checks.iter().map(|check| (Op::Take, std::slice::from_ref(check))).collect();
        for (check, decision) in checks.iter().zip(store.run_all(&decisions, self.now)) {
            let answer = decision.answers[0];
            if answer.admitted {
                self.charges.push((self.lived, cost, check.clone(), answer.receipt));
            }
        }
    }

    pub fn pass(&mut self, ms: i64) {
        self.lived += ms;
        self.now += ms;
    }

    /// Returns the first interval in which more was admitted than the bounds reduced by `weaker` units permit.
    pub fn find_excess(&self, most: &[UnitBound], weaker: i64) -> Option<String> {
        for UnitBound { interval_ms, units } in most {
            let (mut first, mut sum) = (0, 0);
            for (at, cost, ..) in &self.charges {
                sum += cost;
                while self.charges[first].0 < at - interval_ms {
                    sum -= self.charges[first].1;
                    first += 1;
                }
                if sum > units - weaker {
                    return Some(format!("{sum} in {interval_ms} ms, the sentence says {units}"));
                }
            }
        }
        None
    }
}

/// Returns a step of the clock: to edges of the period, and of the intervals in the sentences.
pub fn random_step(rule: &Rule, rng: &mut StdRng) -> i64 {
    let period = rule.policy_at(NOW).window_ms;
    let scale = [period, 1000, 60_000, period / 8, 3 * period][rng.random_range(0..5)];
    match rng.random_range(0..4) {
        0 => 0,
        1 => rng.random_range(0..4),
        2 => (scale + rng.random_range(-1..=1)).max(0),
        _ => rng.random_range(0..=scale),
    }
}

/// Events of a run besides requests.
pub type Disturb<'d> = dyn Fn(&mut Run, &TimedStore, &Check, &mut StdRng) + 'd;

/// Runs a schedule of requests with one disturbance at step `at`, or with one at every step.
pub fn attack(
    store: &TimedStore,
    one: &Check,
    steps: usize,
    at: Option<usize>,
    disturb: &Disturb,
    rng: &mut StdRng,
) -> Run {
    let mut run = Run::begin(rng);
    for step in 0..steps {
        run.take_all(store, one, rng);
        if at.is_none_or(|at| at == step) {
            disturb(&mut run, store, one, rng);
            run.take_all(store, one, rng);
        }
        run.pass(random_step(&one.rule, rng));
    }
    run
}

/// The sentences whose bound some run has reached, so that a bound lower by one would be wrong.
#[derive(Default)]
pub struct Reached(RefCell<BTreeSet<&'static str>>);

impl Reached {
    pub fn note(&self, kind: ClauseKind) {
        self.0.borrow_mut().insert(kind.label());
    }

    pub fn contains(&self, kind: ClauseKind) -> bool {
        self.0.borrow().contains(kind.label())
    }
}

impl Reached {
    /// Checks a run against a sentence.
    pub fn judge(&self, case: &Case, clause: &Clause, run: &Run) {
        if let Some(excess) = run.find_excess(&clause.most, 0) {
            panic!("{excess}: {}\n{:?}", clause.text, case.limit().rule);
        }
        for most in &clause.most {
            assert!(clause.text.contains(&most.units.to_string()) || states_no_number(clause.kind), "{}", clause.text);
        }
        if run.find_excess(&clause.most[..1], 1).is_some() {
            self.note(clause.kind);
        }
    }
}

/// Sentences that say that the numbers of `window` hold.
fn states_no_number(kind: ClauseKind) -> bool {
    matches!(kind, ClauseKind::ClockBack | ClauseKind::Refund | ClauseKind::Crash)
}

pub fn key_of(limit: &Arc<Limit>, rng: &mut StdRng) -> Check {
    check(limit, &format!("n={}", rng.random_range(0..i64::MAX)), 1)
}
