//! How fast long logs are replayed.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::reports::CONFIG;
use super::workdir::Dir;

/// Run by hand for the speed: `cargo test --release --test replay -- --ignored --nocapture`.
#[test]
#[ignore = "takes long; LINES sets how many"]
fn many_lines() {
    let lines: u64 = std::env::var("LINES").map_or(1_000_000, |lines| lines.parse().unwrap());
    let dir = Dir::new(CONFIG);
    generate(&dir.0.path().join("big.log"), lines);
    let started = std::time::Instant::now();
    let (code, stdout, _) = dir.replay(&["big.log"], b"");
    let rate = u128::from(lines) * 1000 / started.elapsed().as_millis();
    println!("{stdout}\n{lines} lines in {:?}: {rate} lines/s", started.elapsed());
    assert_eq!(code, 0);
}

/// Two thousand lines a second of 100,000 clients, few of which ask often.
fn generate(path: &Path, lines: u64) {
    let mut out = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut seed = 1_u64;
    for i in 0..lines {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 33;
        let client = if random.is_multiple_of(4) { random % 64 } else { random % 100_000 };
        let second = i / 2000;
        let (hour, minute, second) = (second / 3600 % 24, second / 60 % 60, second % 60);
        writeln!(
            out,
            "10.{}.{}.{} - - [10/Oct/2000:{hour:02}:{minute:02}:{second:02} +0000] \"GET /item/{}?page=1 HTTP/1.1\" \
             200 5123 \"https://shop.example/list\" \"Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/120.0\"",
            client >> 16,
            client >> 8 & 255,
            client & 255,
            random % 5000,
        )
        .unwrap();
    }
}
