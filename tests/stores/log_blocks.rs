//! The blocks into which the Lua script divides a stored log.

use rand::Rng;
use redis::Commands;
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;

use super::redis_state::{NOW, held, one};
use crate::support::limiting::rules::log;
use crate::support::limiting::{RedisServer, check, limit};

/// Any order of charges of one unit and of several, and their corrections: every block that must be read is short, and
/// there are few blocks.
#[test]
fn blocks_that_are_read_through_are_short() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let mut seeded = crate::support::limiting::seeded();
    for sorted_set in [false, true] {
        for heavy in [0.5, 0.02] {
            let limit = limit("blocks", log(3000, sorted_set), Mode::Enforce);
            let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
            for i in 0..1300 {
                let cost = if seeded.rng.random_bool(heavy) { 2 } else { 1 };
                assert!(one(&mut client, Op::Take, check(&limit, "all", cost), NOW + i).admitted);
            }
            // Refunds in the middle of many charges leave one unit of two, or remove the charge.
            for _ in 0..200 {
                let receipt = NOW + seeded.rng.random_range(0..1300);
                one(&mut client, Op::Adjust, Check { tag: receipt, ..check(&limit, "all", -1) }, NOW + 1300);
            }
            let key = check(&limit, "all", 1).key;
            let head: Vec<String> = match sorted_set {
                true => client.zrevrange(&key, 0, 0).unwrap(),
                false => client.lrange(&key, 0, 0).unwrap(),
            };
            let blocks: Vec<&str> = head[0].split(' ').skip(4).collect();
            assert!(blocks.len() <= 70, "{} blocks: {head:?}", blocks.len());
            for block in blocks.iter().filter_map(|block| block.split_once(':')) {
                assert!(block.0.parse::<usize>().unwrap() <= 64, "{block:?} of {head:?}");
            }
            held(&mut client, &key);
        }
    }
}

/// A log keeps the newest units up to its limit. Older units are added to the oldest kept charge. If this charge is
/// within a block of single units, the block is cut there.
#[test]
fn units_beyond_the_limit_are_added_to_the_oldest_kept_charge() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for sorted_set in [false, true] {
        let limit = limit("blocks", log(300, sorted_set), Mode::Enforce);
        let key = check(&limit, "all", 1).key;
        let () = redis::cmd("FLUSHALL").query(&mut client).unwrap();
        for i in 0..300 {
            assert!(one(&mut client, Op::Take, check(&limit, "all", 1), NOW + i).admitted);
        }
        for (i, more) in [7, 1, 30].into_iter().enumerate() {
            let settled = Check { tag: NOW, ..check(&limit, "all", more) };
            assert!(one(&mut client, Op::Adjust, settled, NOW + 300 + i as i64).admitted);
            held(&mut client, &key);
        }
        // Of 338 units the oldest charge has what the 299 newest leave.
        let charges = held(&mut client, &key);
        assert!(charges.contains(&format!("{}:39", NOW + 38)), "{charges:?}");
        assert!(!charges.iter().any(|charge| charge.starts_with(&format!("{}", NOW + 37))), "{charges:?}");
    }
}

/// The format of earlier builds is read unchanged.
#[test]
fn a_long_block_of_several_units_stays_whole() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    let limit = limit("blocks", log(3000, false), Mode::Enforce);
    let key = check(&limit, "all", 1).key;
    let charges: Vec<String> = (1..1000).map(|i| format!("{}:3", NOW - i)).collect();
    let head = format!("3600000 3000 {NOW} 1 999:2997");
    let () = client.rpush(&key, [vec![head], charges].concat()).unwrap();
    for i in [500, 1, 999] {
        let check = Check { tag: NOW - i, ..check(&limit, "all", -1) };
        assert!(one(&mut client, Op::Adjust, check, NOW + 1).admitted);
    }
    assert_eq!(one(&mut client, Op::Peek, check(&limit, "all", 1), NOW + 1).remaining, 3000 - 2998 + 3 - 1);
    held(&mut client, &key);
}
