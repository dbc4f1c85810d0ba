//! The walk through an attack in docs/operating/under-attack.md: its own commands, in their order, against the built
//! program and real clients. 203.0.113.66 attacks and 203.0.113.7 is innocent; both are loopback addresses here.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::manual::{Block, Example, Page, changed, examples};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// The addresses of the page, and those of the test.
const ADDRESSES: [(&str, &str); 2] = [("203.0.113.66", "127.0.0.66"), ("203.0.113.7", "127.0.0.7")];

const ATTACKER: [u8; 4] = [127, 0, 0, 66];
const INNOCENT: [u8; 4] = [127, 0, 0, 7];

struct Walk {
    blocks: Vec<Block>,
    gateway: Gateway,
    /// The address of the server behind the gateway.
    app: String,
    /// Words of the page, and their replacements in this run.
    learned: HashMap<String, String>,
}

impl Walk {
    /// Starts the gateway with the config of the page.
    fn start(app: &Upstream) -> Walk {
        let app = app.addr.to_string();
        let mut page = Page::read("docs/operating/under-attack.md");
        let config = changed(&page.parts.remove(0).config, "\"0.0.0.0:8080\"]", "\"127.0.0.1:0\"]\nworkers = 1");
        let config = changed(&config, "127.0.0.1:9900", "127.0.0.1:0");
        let config = changed(&config, "127.0.0.1:3000", &app);
        // The page creates the list before the gateway runs, and again as its first command.
        let gateway = Gateway::launch(&[], |dir| {
            std::fs::write(dir.join("blocked.txt"), "# none\n").unwrap();
            crate::support::gateway::config_arguments(dir, &config)
        });
        Walk { blocks: page.blocks, gateway, app, learned: HashMap::new() }
    }

    fn dir(&self) -> &Path {
        self.gateway.dir.path()
    }

    /// `text` of the page with the addresses and words of this run.
    fn translate(&self, text: &str) -> String {
        let mut text = text.replace("127.0.0.1:9900", &self.gateway.admin.to_string());
        for (shown, own) in ADDRESSES {
            text = text.replace(shown, own);
        }
        self.learned.iter().fold(text, |text, (shown, own)| text.replace(shown, own))
    }

    /// Runs a command in the directory of the config, and returns what a terminal would show.
    fn run(&self, command: &str) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_sluicegate")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let script = format!("exec 2>&1\n{}", self.translate(command));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(self.dir()).env("PATH", path).env_remove("SLUICEGATE_CONFIG");
        String::from_utf8(shell.output().unwrap().stdout).unwrap()
    }

    /// The commands under a heading of the page.
    fn examples(&self, title: &str) -> Vec<Example> {
        let blocks = self.blocks.iter().filter(|block| block.title == title && block.language == "console");
        let found: Vec<Example> = blocks.flat_map(|block| examples(&block.text)).collect();
        assert!(!found.is_empty(), "no commands under {title:?}");
        found
    }

    /// Runs the command that starts with `start`, whose output must have the shape that the page shows.
    #[track_caller]
    fn play(&self, title: &str, start: &str) -> String {
        let examples = self.examples(title);
        let example = examples.iter().find(|example| example.command.starts_with(start));
        let Example { command, shown } = example.unwrap_or_else(|| panic!("no {start:?} under {title:?}"));
        let found = self.run(command);
        assert_eq!(shape(&found), shape(&self.translate(shown)), "{command}\n{found}\nshown:\n{shown}");
        found
    }

    /// Puts the section of the page into the config, and loads it.
    #[track_caller]
    fn edit(&self, title: &str) {
        let block = self.blocks.iter().find(|block| block.title == title && block.language == "toml,fragment");
        let mut sections = sections(&std::fs::read_to_string(self.gateway.config()).unwrap());
        for (name, text) in self::sections(&self.translate(&block.unwrap().text)) {
            match sections.iter_mut().find(|(other, _)| *other == name) {
                Some((_, old)) if name == "[[route]]" => *old = text.replace("127.0.0.1:3000", &self.app),
                Some((_, old)) => *old = text,
                None => sections.push((name, text)),
            }
        }
        let config: Vec<String> = sections.into_iter().map(|(name, text)| format!("{name}\n{text}")).collect();
        self.gateway.reload(&config.join("\n"));
    }

    /// The statuses of `count` requests of one client on one connection.
    fn send(&self, source: [u8; 4], count: usize, target: &str, fields: &str) -> Vec<u16> {
        let mut client = self.gateway.client_from(source);
        (0..count).map(|_| client.fetch(&request(target, fields), "").status()).collect()
    }

    /// The statuses of requests of `clients` addresses, each of which sends `count`.
    fn send_from_many(&self, network: u8, clients: u8, count: usize, target: &str, fields: &str) -> Vec<u16> {
        (1..=clients).flat_map(|host| self.send([127, 0, network, host], count, target, fields)).collect()
    }

    /// Runs a command that watches, while a client continues to send.
    #[track_caller]
    fn play_during(&self, title: &str, start: &str, send: impl Fn() + Sync) -> String {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    send();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
            let example = self.examples(title).into_iter().find(|example| example.command.starts_with(start)).unwrap();
            let found = self.run(&example.command);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(shape(&found), shape(&self.translate(&example.shown)), "{start}\n{found}");
            found
        })
    }
}

fn request(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n")
}

/// The sections of a config: their heading, and the lines up to the next one.
fn sections(config: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in config.lines() {
        match found.last_mut() {
            _ if line.starts_with('[') => found.push((line.to_owned(), String::new())),
            Some((_, text)) => *text += &format!("{line}\n"),
            None => panic!("{line} is before the first section"),
        }
    }
    found
}

/// An output without what differs from run to run: numbers, hashes, units of time, and spaces.
fn shape(text: &str) -> String {
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return shape_of(&value).to_string();
    }
    let word = |word: &str| {
        let is_hex = |part: &str| part.len() >= 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<String> =
            word.split('#').map(|part| if is_hex(part) { "HASH" } else { part }.to_owned()).collect();
        let mut shape = String::new();
        for c in parts.join("#").chars() {
            match c {
                '0'..='9' if shape.ends_with('0') => {}
                '0'..='9' => shape.push('0'),
                // Fractions, ranges, times and addresses become one number.
                '.' | '-' | ':' if shape.ends_with('0') => {}
                c => shape.push(c),
            }
        }
        shape
    };
    let line = |line: &str| {
        let words = line.split_whitespace().map(word).filter(|word| !["ms", "s"].contains(&word.trim_end_matches(',')));
        words.collect::<Vec<_>>().join(" ")
    };
    text.trim().lines().map(line).collect::<Vec<_>>().join("\n")
}

fn shape_of(value: &Value) -> Value {
    match value {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), shape_of(value))).collect(),
        Value::Array(items) => items.iter().map(shape_of).collect(),
        Value::String(text) => Value::String(shape(text)),
        Value::Number(_) => 0.into(),
        other => other.clone(),
    }
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|found| **found == status).count()
}

#[test]
fn an_attack_is_over_in_eight_steps() {
    let app = Upstream::text("in");
    let mut walk = Walk::start(&app);
    walk.run(&walk.examples("Be prepared")[0].command);
    walk.play("Be prepared", "sluicegate check");
    block_an_address(&mut walk);
    block_a_key(&mut walk);
    limit_all_together(&walk);
    unlock(&walk);
}

/// Steps 1 to 3: one address sends far too much.
fn block_an_address(walk: &mut Walk) {
    let attack = walk.send(ATTACKER, 300, "/search?q=1", "");
    assert!(count(&attack, 429) > 270, "{attack:?}");
    assert_eq!(count(&walk.send(INNOCENT, 5, "/", ""), 200), 5);
    let seen = walk.play("1. See whose requests are refused", "sluicegate top");
    assert!(seen.lines().nth(3).unwrap().ends_with("ip=127.0.0.66"), "{seen}");

    let cause = "2. Find the cause";
    let attack = |walk: &Walk| drop(walk.send(ATTACKER, 1, "/search?q=1", ""));
    walk.play_during(cause, "sluicegate tap", || attack(walk));
    let refused = walk.gateway.client_from(ATTACKER).fetch(&request("/search?q=1", ""), "");
    let id = id_of(&refused);
    walk.learned.insert("5f1c8a0d2b7e4c93a6d0f8e17b3c2a49".to_owned(), id.clone());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    walk.learned.insert("gw1".to_owned(), format!("{}:{}", host.trim(), walk.gateway.admin.port()));
    let page = walk.play(cause, "curl");
    assert!(page.contains(&id), "{page}");
    // On a slow machine, the attacker would have a unit again before the command has run.
    walk.play_during(cause, "sluicegate explain", || attack(walk));

    let block = "3. Block an address";
    let mut open = walk.gateway.client_from(ATTACKER);
    assert_eq!(open.fetch(&request("/", ""), "").status(), 429);
    walk.run(&walk.examples(block)[0].command);
    walk.play(block, "sluicegate check");
    walk.play(block, "sluicegate explain");
    wait_until("the address is blocked, on a connection that is open", || {
        open.fetch(&request("/", ""), "").status() == 403
    });
    let forged = "x-forwarded-for: 127.0.0.7\r\nforwarded: for=127.0.0.7\r\nx-real-ip: 127.0.0.7\r\n";
    assert_eq!(walk.send(ATTACKER, 3, "/", forged), [403, 403, 403]);
    assert_eq!(walk.send(INNOCENT, 1, "/", ""), [200]);
    break_the_list(walk);
}

/// The identifier in the problem document of a refusal.
fn id_of(refused: &Message) -> String {
    assert_eq!(refused.status(), 429);
    refused.json()["request_id"].as_str().unwrap().to_owned()
}

/// The gateway skips a row with an error, and reports its line. The other rows apply.
fn break_the_list(walk: &Walk) {
    let list = walk.dir().join("blocked.txt");
    let good = std::fs::read_to_string(&list).unwrap();
    for mistake in ["203.0.113.999\n", "127.0.0.1 127.0.0.2\n", "10.0.0.0/8/8\n", "192.0.2.1127.0.0.67", "\u{ff}x\n"] {
        std::fs::write(&list, format!("{good}{mistake}")).unwrap();
        let reload_output = walk.run("sluicegate reload");
        let is_named = |output: &str| output.contains("blocked.txt` are skipped: line 3");
        assert!(is_named(&reload_output), "{mistake:?}: {reload_output}");
        assert!(is_named(&walk.run("sluicegate check")), "{mistake:?}");
        assert_eq!(walk.send(ATTACKER, 1, "/", ""), [403], "{mistake:?}");
        assert_eq!(walk.send(INNOCENT, 1, "/", ""), [200], "{mistake:?}");
    }
    std::fs::write(&list, good).unwrap();
    assert!(!walk.run("sluicegate reload").contains("error"));
}

/// Step 4: one API key, many addresses.
fn block_a_key(walk: &mut Walk) {
    let title = "4. Block a key";
    let stolen = "x-api-key: stolen\r\n";
    let attack = walk.send_from_many(1, 20, 15, "/", stolen);
    assert!(count(&attack, 429) > 240, "{attack:?}");
    let seen = walk.play(title, "sluicegate top");
    let hash = seen.trim_end().rsplit_once('#').unwrap().1.to_owned();
    assert_eq!(hash.len(), 16, "{seen}");
    walk.learned.insert("5f1c0a6e9b3d2784".to_owned(), hash);
    walk.run("cp sluicegate.toml before.toml");
    walk.edit(title);
    walk.play(title, "sluicegate diff");
    let attack = || drop(walk.send([127, 0, 1, 99], 1, "/", stolen));
    let seen = walk.play_during(title, "sluicegate tap", attack);
    assert!(seen.contains("reason=blocked"), "{seen}");
    assert_eq!(walk.send([127, 0, 1, 98], 2, "/", stolen), [429, 429]);
    assert_eq!(walk.send([127, 0, 1, 98], 2, "/", "x-api-key: alice\r\n"), [200, 200]);
    assert_eq!(walk.send(ATTACKER, 1, "/", "x-api-key: alice\r\n"), [403], "blocked as before");
}

/// Steps 5 to 7: many addresses, few requests of each.
fn limit_all_together(walk: &Walk) {
    let title = "5. Try a limit in shadow mode";
    walk.edit(title);
    walk.play(title, "sluicegate check");
    let attack = walk.send_from_many(2, 50, 3, "/search", "");
    assert_eq!(count(&attack, 200), 150, "shadow mode refused");
    walk.play(title, "sluicegate top");
    wait_until("the access log has the attack", || {
        walk.run("cat access.log").lines().filter(|line| line.contains("\"/search\"")).count() >= 150
    });
    walk.play(title, "sluicegate replay");
    let bounds: Value = serde_json::from_str(&walk.play(title, "curl")).unwrap();
    assert!(bounds["refused_min"].as_u64() > bounds["refused"].as_u64(), "{bounds}");
    walk.run("cp sluicegate.toml before.toml");

    let title = "6. Enforce it";
    walk.edit(title);
    walk.play(title, "sluicegate diff");
    walk.play(title, "sluicegate reload");
    let attack = walk.send_from_many(3, 50, 3, "/search", "");
    assert!(count(&attack, 429) > 100, "{attack:?}");
    assert_eq!(walk.send(INNOCENT, 1, "/", ""), [200], "other pages are served");

    let title = "7. See the recovery";
    wait_until("the attack is over", || {
        let shown = &walk.examples(title)[0];
        shape(&walk.run(&shown.command)) == shape(&shown.shown) && walk.run(&shown.command).contains(" 0 in all")
    });
    walk.play(title, "curl");
}

/// Step 8: one client has used up what others at its address need.
fn unlock(walk: &Walk) {
    let title = "8. Unlock innocent users";
    assert!(walk.send(INNOCENT, 40, "/", "").contains(&429));
    walk.play(title, "curl -s 'http");
    walk.play(title, "curl -s -X DELETE");
    assert_eq!(walk.send(INNOCENT, 10, "/", ""), [200; 10]);
}
