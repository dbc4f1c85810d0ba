//! The wall clock is set while the gateway runs: in memory, budgets follow elapsed time, and only the calendar follows
//! the wall clock. With Redis, its clock decides: a clock that is set forward is time that has passed, once.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::client::get;
use crate::support::faketime::clock_from_file;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

fn route(name: &str, limit: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ }}\nlimits = [\"{name}\"]\n\n\
         [limit.{name}]\nkey = \"header:x-key\"\n{limit}\n\n"
    )
}

/// A gateway with the memory store, whose clock differs by the offset in the file.
struct Stepped {
    gateway: Gateway,
    offset: tempfile::NamedTempFile,
}

impl Stepped {
    fn start(config: &str) -> Stepped {
        let offset = tempfile::NamedTempFile::new().unwrap();
        fs::write(offset.path(), "+0s").unwrap();
        let env = clock_from_file(offset.path());
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Stepped { gateway: Gateway::with_env(&env, "", config), offset }
    }

    fn step_to(&self, offset: &str) {
        fs::write(self.offset.path(), offset).unwrap();
    }

    fn admitted(&self, name: &str, key: &str, count: usize) -> usize {
        let head = get(&format!("/{name}"), &format!("x-key: {key}\r\n"));
        (0..count).filter(|_| self.gateway.fetch(&head).status() == 200).count()
    }
}

const FORMS: [(&str, &str); 8] = [
    ("token_bucket", "rate = \"3/h\""),
    ("interval", "rate = \"3/h\"\nrefill = \"interval\""),
    ("gcra", "algorithm = \"gcra\"\nrate = \"3/h\""),
    ("first_hit", "algorithm = \"fixed_window\"\nrate = \"3/h\""),
    ("clock", "algorithm = \"fixed_window\"\nrate = \"3/3650d\"\nanchor = \"clock\""),
    ("sliding_window", "algorithm = \"sliding_window\"\nrate = \"3/h\"\nprecision = 10"),
    ("sliding_log", "algorithm = \"sliding_log\"\nrate = \"3/h\""),
    ("leaky_bucket", "algorithm = \"leaky_bucket\"\nrate = \"3/h\"\nqueue = \"40min\"\nnodelay = true"),
];

#[test]
fn a_step_of_the_clock_refills_nothing() {
    let config: String = FORMS.iter().map(|(name, limit)| route(name, limit)).collect();
    let config = config + &route("calendar", "algorithm = \"calendar\"\nrate = \"3/year\"");
    let stepped = Stepped::start(&config);
    for (name, _) in FORMS {
        assert_eq!(stepped.admitted(name, "spent", 5), 3, "{name}");
    }
    assert_eq!(stepped.admitted("calendar", "spent", 5), 3);
    for offset in ["+2h", "+4000d", "-2h", "-4000d", "+0s"] {
        stepped.step_to(offset);
        for (name, _) in FORMS {
            assert_eq!(stepped.admitted(name, "spent", 1), 0, "{name} by a clock set to {offset}");
            assert_eq!(stepped.admitted(name, offset, 5), 3, "{name}: a new key by a clock set to {offset}");
        }
    }
    // Calendar years follow the wall clock.
    stepped.step_to("+370d");
    assert_eq!(stepped.admitted("calendar", "spent", 5), 3);
}

/// Tiers and candidates follow the same clock as plain limits.
#[test]
fn a_step_of_the_clock_refills_no_tier_and_no_candidate() {
    let tiers = "key = [\"ip6tiers/64/56x2/48x3\", \"header:x-key\"]";
    let mut config = route("t", "rate = \"3/h\"").replace("key = \"header:x-key\"", tiers);
    config += "[limit.next]\nrate = \"2/h\"\nkey = \"header:x-key\"\ncandidate_of = \"t\"\n";
    let stepped = Stepped::start(&config);
    assert_eq!(stepped.admitted("t", "spent", 5), 3);
    let assert_effects = |counts: [f64; 3]| {
        for (effect, count) in ["agree", "would_refuse", "would_admit"].into_iter().zip(counts) {
            let labels = [("route", "t"), ("limit", "next"), ("effect", effect)];
            stepped.gateway.assert_metric("candidate_decisions_total", &labels, count);
        }
    };
    assert_effects([4.0, 1.0, 0.0]);
    for offset in ["+2h", "+4000d", "-2h", "-4000d", "+0s"] {
        stepped.step_to(offset);
        assert_eq!(stepped.admitted("t", "spent", 1), 0, "by a clock set to {offset}");
    }
    // Both refuse.
    assert_effects([9.0, 1.0, 0.0]);
}

/// The clock of Redis is set back and forward. A time that it shows for the second time is no time that has passed.
#[test]
fn a_step_of_the_clock_of_redis_mints_nothing_for_tiers_and_candidates() {
    const HOUR_S: i64 = 3600;
    let redis = RedisServer::with_clock();
    let tiers = |rate: &str| format!("rate = \"{rate}\"\nkey = \"ip6tiers/64/56x2/48x3\"\n");
    let gateway = Gateway::with(
        "trusted_proxies = [\"127.0.0.0/8\"]",
        &format!(
            "[store]\nurl = \"{}\"\ndeadline = \"10s\"\n[[route]]\nname = \"t\"\npath = \"/\"\nrespond = {{ }}\n\
             limits = [\"t\"]\n[limit.t]\n{}[limit.next]\n{}candidate_of = \"t\"\n",
            redis.url(),
            tiers("3/h"),
            tiers("2/h")
        ),
    );
    gateway.wait_for_store();
    // Three networks of a /48, two of them in one /56, and a fourth that finds it exhausted.
    let admitted = || {
        ["1:1", "1:2", "1:101", "1:202"].map(|net| {
            let head = get("/", &format!("x-forwarded-for: 2001:db8:{net}::1\r\n"));
            (0..4).filter(|_| gateway.fetch(&head).status() == 200).count()
        })
    };
    assert_eq!(admitted(), [3, 3, 3, 0]);
    // Not further than a whole refill: from there on, the right time would be time that has passed.
    for seconds in [-600, 0, -HOUR_S / 6 * 5, 0] {
        redis.set_clock(seconds);
        assert_eq!(admitted(), [0; 4], "by a clock that is {seconds} s ahead");
    }
    redis.set_clock(HOUR_S / 3);
    assert_eq!(admitted(), [1, 1, 1, 0], "twenty minutes have passed");
    for seconds in [0, HOUR_S / 3, -HOUR_S / 6, HOUR_S / 3] {
        redis.set_clock(seconds);
        assert_eq!(admitted(), [0; 4], "by a clock that is {seconds} s ahead again");
    }
    redis.set_clock(2 * HOUR_S);
    assert_eq!(admitted(), [3, 3, 3, 0], "more than an hour has passed");
    // It would admit two, none and two for each network, and in these twenty minutes, two for the fourth network in the /48.
    for (effect, count) in [("would_refuse", 9.0), ("would_admit", 2.0)] {
        let labels = [("route", "t"), ("limit", "next"), ("effect", effect)];
        gateway.assert_metric("candidate_decisions_total", &labels, count);
    }
}

/// After a change of the clock, clients wait for a period of the limit, not until the clock has the old time again.
#[test]
fn a_clock_set_back_blocks_nobody() {
    let second: String = FORMS
        .iter()
        .filter(|(name, _)| *name != "clock")
        .map(|(name, limit)| route(name, &limit.replace("/h", "/s").replace("40min", "667ms")))
        .collect();
    let stepped = Stepped::start(&second);
    for offset in ["-1h", "+1h"] {
        stepped.step_to("+0s");
        let names = FORMS.iter().map(|(name, _)| *name).filter(|name| *name != "clock");
        for name in names.clone() {
            let key = format!("{name}{offset}");
            assert!(stepped.admitted(name, &key, 3) > 0);
        }
        stepped.step_to(offset);
        let deadline = Instant::now() + Duration::from_secs(3);
        for name in names {
            let key = format!("{name}{offset}");
            while stepped.admitted(name, &key, 1) == 0 {
                assert!(Instant::now() < deadline, "{name} refuses by a clock set to {offset}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
