//! The sentences of `sluicegate contract`: each is attacked by random runs on both stores, and the runs find bounds
//! that are too low by one.

mod runs;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::config;
use sluicegate::contract::clauses::{ClauseKind, FORWARD_MS};
use sluicegate::contract::report::Contract;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::overrides::table::OverrideBudget;
use sluicegate::limiting::store::memory::MemoryStore;

use self::runs::{ALGORITHMS, Case, NOW, Reached, Run, attack, key_of, random_lines, random_step};
use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::timed_stores::TimedStore;
use crate::support::limiting::{check, seeded};

/// Attacks all sentences with a number, on a store, with `rounds` random limits of each algorithm.
fn attack_sentences(store: &TimedStore, is_shared: bool, rounds: usize, steps: usize, reached: &Reached) {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for round in 0..rounds * ALGORITHMS {
        let lines = random_lines(round % ALGORITHMS, rng);
        let gateways = rng.random_range(1..5);
        let refunds = if rng.random_bool(0.5) { "\nrefund_on = [\"5xx\"]" } else { "" };
        let case = Case::new(&(lines.clone() + refunds), "", is_shared, gateways);
        let at = Some(rng.random_range(0..steps));
        let undisturbed = attack(store, &key_of(case.limit(), rng), steps, at, &|_, _, _, _| {}, rng);
        reached.judge(&case, &case.clause(ClauseKind::Window), &undisturbed);
        let lost = attack(store, &key_of(case.limit(), rng), steps, at, &lose_state, rng);
        reached.judge(&case, &case.clause(ClauseKind::StoreLoss), &lost);
        if !is_shared {
            reached.judge(&case, &case.clause(ClauseKind::Restart), &lost);
        }
        let back = attack(store, &key_of(case.limit(), rng), steps, None, &set_back, rng);
        let is_set_back = is_shared || case.limit().rule.is_calendar();
        reached.judge(&case, &case.clause(ClauseKind::ClockBack), if is_set_back { &back } else { &undisturbed });
        if is_shared {
            attack_shared(store, &case, steps, reached, rng);
        }
        if !refunds.is_empty() {
            let refunded = attack(store, &key_of(case.limit(), rng), steps, None, &refund_some, rng);
            reached.judge(&case, &case.clause(ClauseKind::Refund), &refunded);
        }
        attack_overrides(store, round % ALGORITHMS, steps, reached, rng);
        attack_chain(store, &lines, steps, reached, rng);
        attack_tiers(store, &lines, steps, reached, rng);
        attack_forwarding(store, &lines, steps, reached, rng);
    }
}

/// Sentences about Redis: its clock and its outages.
fn attack_shared(store: &TimedStore, case: &Case, steps: usize, reached: &Reached, rng: &mut StdRng) {
    let limit = case.limit();
    let forward = |run: &mut Run, _: &TimedStore, _: &Check, _: &mut StdRng| run.now += FORWARD_MS;
    let at = Some(rng.random_range(0..steps));
    let run = attack(store, &key_of(limit, rng), steps, at, &forward, rng);
    reached.judge(case, &case.clause(ClauseKind::ClockForward), &run);
    // During an outage, each gateway decides by its share in a memory of its own, which it keeps for the next outage.
    let share = Arc::new(limit.rule.share(case.gateways));
    let own: Vec<TimedStore> = (0..case.gateways).map(|_| TimedStore::Memory(MemoryStore::new(1000))).collect();
    let outage = |run: &mut Run, _: &TimedStore, one: &Check, rng: &mut StdRng| {
        let local = Check { rule: share.clone(), ..one.clone() };
        own.iter().for_each(|gateway| run.take_all(gateway, &local, rng));
    };
    let run = attack(store, &key_of(limit, rng), steps, None, &outage, rng);
    reached.judge(case, &case.clause(ClauseKind::Outage), &run);
}

fn lose_state(_: &mut Run, store: &TimedStore, one: &Check, _: &mut StdRng) {
    store.run(Op::Reset, std::slice::from_ref(one), NOW);
}

/// Sets the clock back by less than a window, as far as the run has come.
fn set_back(run: &mut Run, _: &TimedStore, one: &Check, rng: &mut StdRng) {
    let period = one.rule.policy_at(NOW).window_ms;
    // The clock is never further behind its latest time than that.
    let most = (NOW + run.lived).min(run.now) - (run.now - period / 2).min(run.now);
    run.now -= if rng.random_bool(0.3) { rng.random_range(0..=most.clamp(0, period / 2)) } else { 0 };
}

/// Refunds some charges, each at most once. Refunded charges no longer count.
fn refund_some(run: &mut Run, store: &TimedStore, _: &Check, rng: &mut StdRng) {
    let mut kept = Vec::new();
    for (at, cost, check, receipt) in std::mem::take(&mut run.charges) {
        if check.tag < 0 || rng.random_bool(0.7) {
            kept.push((at, cost, Check { tag: -1, ..check }, receipt));
            continue;
        }
        let receipt = if check.rule.needs_tag() { check.tag } else { receipt };
        let correction = check.correction(-cost, receipt);
        store.run(Op::Adjust, std::slice::from_ref(&correction), run.now);
    }
    run.charges = kept;
}

fn attack_overrides(store: &TimedStore, algorithm: usize, steps: usize, reached: &Reached, rng: &mut StdRng) {
    if algorithm == 9 {
        return;
    }
    let number = rng.random_range(2..9);
    let lines = random_lines(algorithm, rng).replace("key = \"all\"", "");
    let text = format!(
        "[[route]]\nupstream = \"echo:\"\nlimits = [\"l\"]\n[limit.l]\nkey = \"host\"\n{lines}\n\
         [[limit.l.overrides]]\nkey = [\"a\"]\nrate = \"{number}/7s\"\n[[limit.l.overrides]]\nkey = [\"b\"]\nrate = \"3/s\"\n"
    );
    let config = config::load_text("overrides.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    let case = Case { config, gateways: 1 };
    let limit = case.limit().clone();
    for (_, entry) in limit.overrides.fixed().entries() {
        let OverrideBudget::Rule(rule) = &entry.budget else { panic!("{entry:?}") };
        let one = Check { rule: rule.clone(), ..key_of(&limit, rng) };
        let run = attack(store, &one, steps, Some(0), &|_, _, _, _| {}, rng);
        reached.judge(&case, &case.clause(ClauseKind::Overrides), &run);
    }
}

/// A limit that comes after an equal one: both together.
fn attack_chain(store: &TimedStore, lines: &str, steps: usize, reached: &Reached, rng: &mut StdRng) {
    let case = Case::new(&format!("{lines}\nafter = \"base\""), "", true, 1);
    let (mut first, mut second) = (key_of(case.config.limits.find("base").unwrap(), rng), key_of(case.limit(), rng));
    (first.role.base, second.role.after) = (true, Some(0));
    let mut run = Run::begin(rng);
    for _ in 0..steps {
        for _ in 0..70 {
            (first.tag, second.tag) = (rng.random_range(0..1 << 52), rng.random_range(0..1 << 52));
            let decision = store.run(Op::Take, &[first.clone(), second.clone()], run.now);
            if !decision.admitted {
                break;
            }
            run.charges.push((run.lived, 1, first.clone(), 0));
        }
        run.pass(random_step(&first.rule, rng));
    }
    reached.judge(&case, &case.clause(ClauseKind::After), &run);
}

/// A client moves between the networks that its /48 contains, in random order, and empties each.
fn attack_tiers(store: &TimedStore, lines: &str, steps: usize, reached: &Reached, rng: &mut StdRng) {
    if lines.contains("fair") {
        return;
    }
    let text = format!(
        "[[route]]\nupstream = \"echo:\"\nlimits = [\"l\"]\n\
         [limit.l]\nkey = \"ip6tiers/64/56x2/48x3\"\n{lines}\n"
    );
    let config = config::load_text("tiers.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    let tiers = ["l", "l.56", "l.48"].map(|name| config.limits.find(name).unwrap().clone());
    let (case, client) = (Case { config, gateways: 1 }, rng.random_range(0..i64::MAX));
    let mut run = Run::begin(rng);
    for _ in 0..steps {
        for _ in 0..8 {
            // The number of a /64 consists of that of its /56 and one more bit.
            let net = rng.random_range(0..4);
            let keys = [net, net >> 1, 0].map(|net| format!("n={client}-{net}"));
            let most = tiers[0].rule.policy().quota + 4;
            let mut requests: Vec<Vec<Check>> = Vec::new();
            for _ in 0..most {
                let mut tag = || rng.random_range(0..1 << 52);
                let checks = tiers.iter().zip(&keys).map(|(tier, key)| Check { tag: tag(), ..check(tier, key, 1) });
                requests.push(checks.collect());
            }
            let decisions: Vec<(Op, &[Check])> = requests.iter().map(|checks| (Op::Take, checks.as_slice())).collect();
            for (checks, decision) in requests.iter().zip(store.run_all(&decisions, run.now)) {
                if decision.admitted {
                    run.charges.push((run.lived, 1, checks[0].clone(), 0));
                }
            }
        }
        run.pass(random_step(&tiers[2].rule, rng));
    }
    reached.judge(&case, &case.clause(ClauseKind::Tiers), &run);
}

/// A limit that forwards what exceeds it, and one in shadow mode: all requests pass, and the requests within the limit
/// are bounded.
fn attack_forwarding(store: &TimedStore, lines: &str, steps: usize, reached: &Reached, rng: &mut StdRng) {
    let case = Case::new(&format!("{lines}\nover = \"annotate\""), "", true, 1);
    let run = attack(store, &key_of(case.limit(), rng), steps, Some(0), &|_, _, _, _| {}, rng);
    reached.judge(&case, &case.clause(ClauseKind::Within), &run);
    let shadow = Case::new(&format!("{lines}\nmode = \"shadow\""), "", true, 1);
    for case in [&case, &shadow] {
        let one = key_of(case.limit(), rng);
        let many = (0..70).map(|_| store.run(Op::Take, std::slice::from_ref(&one), NOW));
        assert_eq!(many.filter(|decision| decision.admitted).count(), 70, "nothing is refused");
    }
    assert!(shadow.clause(ClauseKind::Unbounded).text.contains("there is no bound"));
    reached.note(ClauseKind::Unbounded);
}

/// Attacks the bounds of concurrency limits: in normal operation, after a loss of data, and after a crash.
fn attack_slots(store: &TimedStore, reached: &Reached) {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for _ in 0..6 {
        let (most, lease) = (rng.random_range(1..8), rng.random_range(1..30));
        let case = Case::new(
            &format!("algorithm = \"concurrency\"\nin_flight = {most}\nlease = \"{lease}s\""),
            "",
            true,
            rng.random_range(1..4),
        );
        let mut one = key_of(case.limit(), rng);
        let lease_ms = case.clause(ClauseKind::Crash).most[0].interval_ms;
        assert!(lease_ms >= lease * 1000);
        let (mut now, mut held): (i64, Vec<Check>) = (NOW, Vec::new());
        let mut run = Run::default();
        for step in 0..60 {
            one.tag = rng.random_range(0..1 << 52);
            if store.one(Op::Take, &one, now).admitted {
                held.push(one.clone());
            }
            run.charges = held.iter().map(|check| (0, 1, check.clone(), 0)).collect();
            reached.judge(&case, &case.clause(ClauseKind::Window), &run);
            if rng.random_bool(0.2) && !held.is_empty() {
                let ended = held.swap_remove(rng.random_range(0..held.len()));
                store.run(Op::Adjust, &[Check { cost: -1, ..ended }], now);
            }
            // All gateways renew their slots in time.
            now += rng.random_range(0..=lease * 500);
            for slot in &held {
                store.run(Op::Adjust, std::slice::from_ref(slot), now);
            }
            if step == 59 {
                lose_state(&mut run, store, &one, rng);
            }
        }
        for _ in 0..most + 1 {
            one.tag = rng.random_range(0..1 << 52);
            if store.one(Op::Take, &one, now).admitted {
                held.push(one.clone());
            }
        }
        run.charges = held.iter().map(|check| (0, 1, check.clone(), 0)).collect();
        reached.judge(&case, &case.clause(ClauseKind::StoreLoss), &run);
        // The gateway no longer renews its slots.
        assert_eq!(store.count_admitted(&one, 1, now + lease * 1000 - 1), 0, "slots outlive `lease`");
        assert_eq!(
            store.count_admitted(&one, 99, now + lease_ms),
            most,
            "all slots are free {lease_ms} ms after a crash"
        );
        reached.note(ClauseKind::Crash);
    }
}

/// Usage that a response reports beyond the reservation is charged only as far as the budget has units.
fn attack_settling(store: &TimedStore, reached: &Reached) {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for algorithm in [0, 2, 3, 9] {
        let case = Case::new(&format!("{}\nsettle = \"header:x-cost\"", random_lines(algorithm, rng)), "", true, 1);
        assert!(case.clause(ClauseKind::Settle).text.contains("Responses that report more are charged the rest"));
        let one = key_of(case.limit(), rng);
        let answer = store.one(Op::Take, &one, NOW);
        let more = rng.random_range(1..60);
        store.run(Op::Adjust, &[Check { cost: more, tag: answer.receipt, ..one.clone() }], NOW);
        let left = store.one(Op::Peek, &Check { cost: 0, ..one.clone() }, NOW).remaining;
        assert_eq!(left, (answer.remaining - more).max(0), "{:?} and {more} more", one.rule);
    }
    // What exceeds the debt is lost, and the rest is repaid before anything is admitted: the wait says so.
    for (lines, debt) in [("rate = \"1/s\"\nburst = 5", 0), ("rate = \"1/s\"\nburst = 5\ndebt = 7", 7)] {
        let case = Case::new(&format!("{lines}\nsettle = \"header:x-cost\""), "", true, 1);
        assert_eq!(case.limit().rule.late_debt(), Some(debt));
        let one = key_of(case.limit(), rng);
        let answer = store.one(Op::Take, &one, NOW);
        store.run(Op::Adjust, &[Check { cost: 1_000_000, tag: answer.receipt, ..one.clone() }], NOW);
        let refused = store.one(Op::Take, &Check { cost: 1, ..one.clone() }, NOW);
        assert_eq!((refused.admitted, refused.retry_ms), (false, 1000 * debt + if debt > 0 { 1 } else { 1000 }));
    }
    reached.note(ClauseKind::Settle);
}

/// One tenant takes what it gets, in small and large charges, while others may have a part.
fn attack_tenants(store: &TimedStore, reached: &Reached) {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for _ in 0..60 {
        let case = Case::new(&random_lines(10, rng), "", true, 1);
        let clause = case.clause(ClauseKind::Tenants);
        let (one, mut run) = (key_of(case.limit(), rng), Run::begin(rng));
        if rng.random_bool(0.3) {
            store.one(Op::Take, &Check { tag: 2, ..one.clone() }, run.now);
        }
        for _ in 0..60 {
            let cost = if rng.random_bool(0.8) { rng.random_range(1..3) } else { rng.random_range(1..30) };
            let check = Check { tag: 1, cost, ..one.clone() };
            if store.one(Op::Take, &check, run.now).admitted {
                run.charges.push((0, check.cost, check, 0));
            }
        }
        reached.judge(&case, &clause, &run);
    }
}

/// The sentence about leases bounds unspent units; `hot_keys` tests how much leases admit.
fn check_leases(reached: &Reached) {
    let case = Case::new("rate = \"3000/s\"\nburst = 5000\nlease = { horizon = \"200ms\" }", "", true, 1);
    assert!(case.clause(ClauseKind::Lease).text.contains("at most 600 of a key in each gateway"));
    reached.note(ClauseKind::Lease);
}

/// Requests without a key part, and requests that a condition leaves out, through a gateway.
fn check_exempt_requests(reached: &Reached) {
    let limit = |missing: &str| {
        format!(
            "[[route]]\npath = \"/{missing}\"\nrespond = {{}}\nlimits = [\"{missing}\"]\n\
             [limit.{missing}]\nrate = \"2/h\"\nkey = \"header:x-key\"\nmissing = \"{missing}\"\n"
        )
    };
    let when = "[[route]]\npath = \"/when\"\nrespond = {}\nlimits = [\"when\"]\n\
                [limit.when]\nrate = \"2/h\"\nwhen = { method = [\"POST\"] }\n\
                [[route]]\npath = \"/month\"\nrespond = {}\nlimits = [\"month\"]\n\
                [limit.month]\nalgorithm = \"calendar\"\nrate = \"2/month\"\nresets_on = \"header:x-day\"\n";
    let text = ["skip", "shared", "refuse"].map(limit).concat() + when;
    let gateway = Gateway::start(&text);
    let mut client = gateway.client();
    let mut admitted = |target: &str| (0..5).filter(|_| client.fetch(&get(target, ""), "").status() == 200).count();
    assert_eq!(["/skip", "/shared", "/refuse", "/when"].map(&mut admitted), [5, 2, 0, 5]);
    let config = config::load_text("exempt.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    let contract = Contract::new(&config, None, |_| true);
    let says = |limit: &str, kind, words: &str| {
        let clause = contract.clauses_of(limit).iter().find(|clause| clause.kind == kind).unwrap();
        assert!(clause.text.contains(words), "{}", clause.text);
        reached.note(kind);
    };
    says("skip", ClauseKind::Missing, "are not limited");
    says("shared", ClauseKind::Missing, "share one budget");
    says("refuse", ClauseKind::Missing, "are refused");
    says("when", ClauseKind::When, "are not limited");
    says("month", ClauseKind::MonthDay, "begin on the day in header:x-day");
}

/// A price that a list sets, and a ban, through a gateway.
fn check_prices_and_bans(reached: &Reached) {
    let text = "[[route]]\nname = \"priced\"\npath = \"/priced\"\nrespond = {}\nlimits = [{ name = \"credits\", cost = 5 }]\n\
                [[route]]\npath = \"/banned\"\nrespond = {}\nlimits = [\"other\", \"banned\"]\n\
                [[route]]\npath = \"/other\"\nrespond = {}\nlimits = [\"other\"]\n\
                [limit.credits]\nrate = \"10/h\"\n[limit.other]\nrate = \"9/h\"\n\
                [limit.banned]\nrate = \"2/h\"\nban = { after = 3, within = \"1h\", for = \"1h\" }\n";
    let gateway = Gateway::start(text);
    let mut client = gateway.client();
    let mut admitted = |target: &str| (0..10).filter(|_| client.fetch(&get(target, ""), "").status() == 200).count();
    assert_eq!(["/priced", "/banned", "/other"].map(&mut admitted), [2, 2, 7]);
    let config = config::load_text("prices.toml", text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    let contract = Contract::new(&config, None, |_| true);
    for (limit, kind, words) in
        [("credits", ClauseKind::Price, "on route priced, 5"), ("banned", ClauseKind::Ban, "A banned key gets nothing")]
    {
        let clause = contract.clauses_of(limit).iter().find(|clause| clause.kind == kind).unwrap();
        assert!(clause.text.contains(words), "{}", clause.text);
        reached.note(kind);
    }
}

/// More rounds with `CONTRACT_ROUNDS=100`.
fn rounds(least: usize) -> usize {
    std::env::var("CONTRACT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(least)
}

#[test]
fn random_runs_in_memory_stay_within_every_sentence() {
    let reached = Reached::default();
    let store = || TimedStore::Memory(MemoryStore::new(1_000_000));
    attack_sentences(&store(), false, rounds(2), 25, &reached);
    attack_sentences(&store(), true, rounds(2), 25, &reached);
    attack_slots(&store(), &reached);
    attack_settling(&store(), &reached);
    attack_tenants(&store(), &reached);
    check_leases(&reached);
    check_exempt_requests(&reached);
    check_prices_and_bans(&reached);
    // Each number can be reached, so a bound that is lower by one would have failed.
    let missing: Vec<&ClauseKind> = ClauseKind::ALL.iter().filter(|kind| !reached.contains(**kind)).collect();
    assert!(missing.is_empty(), "no run reaches the sentences {missing:?}");
}

#[test]
fn random_runs_in_redis_stay_within_every_sentence() {
    let (store, reached) = (TimedStore::redis_on_call_time(), Reached::default());
    attack_sentences(&store, true, rounds(1), 6, &reached);
    attack_slots(&store, &reached);
    attack_settling(&store, &reached);
    attack_tenants(&store, &reached);
    use ClauseKind::{After, Crash, Outage, StoreLoss, Tiers, Window};
    for kind in [Window, StoreLoss, Outage, After, Tiers, Crash] {
        assert!(reached.contains(kind), "no run reaches the sentence {kind:?}");
    }
}

/// The table of the page has the formula of each algorithm, and its examples are the sentences of the command.
#[test]
fn the_page_about_bounds_says_the_same() {
    let page = fs::read_to_string("docs/guarantees/bounds.md").unwrap();
    let table: Vec<(String, String)> = page
        .lines()
        .skip_while(|line| *line != "| algorithm | bound |")
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
            (cells[1].clone(), cells[2].clone())
        })
        .collect();
    let mut seeded = seeded();
    let rows = [
        "token_bucket",
        "token_bucket with refill = \"interval\"",
        "gcra",
        "fixed_window",
        "fixed_window",
        "sliding_log",
        "sliding_window, precision = 2",
        "sliding_window, precision = 3 to 60",
        "leaky_bucket",
        "calendar",
        "fair",
    ];
    let slots = Case::new("algorithm = \"concurrency\"\nin_flight = 3", "", true, 1);
    let cases = rows
        .iter()
        .enumerate()
        .map(|(place, row)| (*row, Case::new(&random_lines(place, &mut seeded.rng), "", true, 1)));
    let mut seen = BTreeSet::new();
    let warming = Case::new("rate = \"3/10s\"\nwarm_up = \"10s\"", "", true, 1);
    for (row, case) in cases.chain([("concurrency", slots), ("token_bucket with warm_up", warming)]) {
        let (_, cell) = table.iter().find(|(name, _)| name == row).unwrap_or_else(|| panic!("no row {row}"));
        let report = Contract::new(&case.config, None, |limit| limit.name == "l").to_json();
        assert_eq!(report["limits"][0]["formula"], cell.as_str(), "{row}");
        seen.insert(row);
    }
    assert_eq!(seen.len(), table.len(), "rows of other algorithms: {table:?}");
}

/// Computed by hand, for 3 requests at once and 1 per 10 s.
#[test]
fn the_numbers_are_those_of_the_formulas() {
    let case = |lines: &str| {
        let most = Case::new(lines, "", true, 1).clause(ClauseKind::Window).most;
        most.into_iter().map(|most| (most.interval_ms, most.units)).collect::<Vec<_>>()
    };
    let second_minute_hour_day = |units: [i64; 4]| [1000, 60_000, 3_600_000, 86_400_000].into_iter().zip(units);
    let bucket: Vec<_> = [(0, 3)].into_iter().chain(second_minute_hour_day([3, 9, 363, 8643])).collect();
    let numbers = case("rate = \"1/10s\"\nburst = 3");
    assert!(bucket.iter().all(|number| numbers.contains(number)), "{numbers:?}");
    let window: Vec<_> = [(0, 5)].into_iter().chain(second_minute_hour_day([10, 10, 305, 7205])).collect();
    assert_eq!(case("algorithm = \"fixed_window\"\nrate = \"5/min\""), window);
    let log: Vec<_> = [(0, 5)].into_iter().chain(second_minute_hour_day([5, 5, 300, 7200])).collect();
    assert_eq!(case("algorithm = \"sliding_log\"\nrate = \"5/min\""), log);
}

/// Reads a code block of the section about the command.
fn manual_block(language: &str) -> String {
    let page = fs::read_to_string("docs/reference/command-line.md").unwrap();
    let (_, section) = page.split_once("## sluicegate contract\n").unwrap();
    let (_, block) = section.split_once(&format!("```{language}\n")).unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_command_prints_text_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[store]\nurl = \"redis://127.0.0.1:1\"\ngateways = 4\n[[route]]\nrespond = {}\nlimits = [\"a\", \"b\"]\n\
                [limit.a]\nrate = \"10/s\"\nburst = 20\n[limit.b]\nalgorithm = \"concurrency\"\nin_flight = 8\n";
    fs::write(dir.path().join("sluicegate.toml"), text).unwrap();
    let run = |arguments: &[&str]| {
        let out = program().current_dir(dir.path()).arg("contract").args(arguments).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, json, _) = run(&["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["gateways"]), (Some(0), &4.into()));
    let window = &json["limits"][0]["clauses"][0];
    assert_eq!((&window["kind"], &window["most"][0]["units"]), (&"window".into(), &20.into()));
    let (code, text, _) = run(&["--limit", "a", "--gateways", "2"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("limit a (token_bucket") && !text.contains("limit b"), "{text}");
    assert!(text.contains("each of 2 gateways") && text.contains("at most 40 requests at once"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    assert_eq!(run(&["--limit", "c"]).0, Some(2));
    fs::write(dir.path().join("sluicegate.toml"), manual_block("toml")).unwrap();
    assert_eq!(format!("$ sluicegate contract\n{}", run(&[]).1), manual_block("text"));
    fs::write(dir.path().join("sluicegate.toml"), "[limit.a]\n").unwrap();
    assert_eq!(run(&[]).0, Some(2));
}
