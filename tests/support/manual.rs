//! Pages of the manual as tests read them: configs, and commands with the output shown below them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::gateway::Gateway;
use super::upstream::{Upstream, ok};

/// A config and the commands after it, up to the next config.
pub struct Part {
    /// The heading of its section.
    pub title: String,
    pub config: String,
    pub examples: Vec<Example>,
}

#[derive(Clone)]
pub struct Example {
    pub command: String,
    pub shown: String,
}

/// A block of code, under the heading of its section.
pub struct Block {
    pub title: String,
    pub language: String,
    pub text: String,
}

pub struct Page {
    /// All blocks in their order.
    pub blocks: Vec<Block>,
    /// The shell functions and variables that the commands use.
    pub words: String,
    pub parts: Vec<Part>,
}

/// The addresses in the manual.
const GATEWAY: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9900";
const APP: &str = "127.0.0.1:3000";
const REDIS: &str = "127.0.0.1:6379";

impl Page {
    pub fn read(path: &str) -> Page {
        let text = std::fs::read_to_string(path).unwrap();
        let mut page = Page { blocks: Vec::new(), words: String::new(), parts: Vec::new() };
        let (mut title, mut block) = (String::new(), None::<(String, String)>);
        for line in text.lines() {
            let trimmed = line.trim_start();
            match (&mut block, trimmed.strip_prefix("```")) {
                (None, Some(language)) => block = Some((language.to_owned(), String::new())),
                (Some(_), Some(_)) => {
                    let (language, text) = block.take().unwrap();
                    page.take(&language, text, &title);
                }
                (Some((_, text)), None) => *text += &format!("{line}\n"),
                (None, None) => {
                    if let Some(heading) = line.strip_prefix('#') {
                        title = heading.trim_start_matches('#').trim().to_owned();
                    }
                }
            }
        }
        page
    }

    fn take(&mut self, language: &str, text: String, title: &str) {
        self.blocks.push(Block { title: title.to_owned(), language: language.to_owned(), text: text.clone() });
        match language {
            "toml" => self.parts.push(Part { title: title.to_owned(), config: text, examples: Vec::new() }),
            "sh" => {
                // It runs before every command of the page.
                let is_install = ["sudo ", "apt ", "cargo ", "make ", "docker "].iter().any(|word| text.contains(word));
                assert!(!is_install, "{title}: a block of commands that install is `text`, not `sh`:\n{text}");
                self.words += &text;
            }
            "console" => {
                let Some(part) = self.parts.last_mut() else { return };
                part.examples.extend(examples(&text));
            }
            _ => {}
        }
    }

    /// The parts of a section.
    #[track_caller]
    pub fn under(&self, title: &str) -> Vec<&Part> {
        let parts: Vec<&Part> = self.parts.iter().filter(|part| part.title == title).collect();
        assert!(!parts.is_empty(), "there is no config under {title:?}");
        parts
    }
}

impl Part {
    pub fn needs_redis(&self) -> bool {
        self.config.contains(&format!("redis://{REDIS}"))
    }

    /// Starts a gateway with this config in front of `app`.
    pub fn start(&self, app: &Upstream, redis: Option<u16>) -> Gateway {
        self.start_changed(app, redis, &[])
    }

    /// Starts a gateway with changes to the config, each a text that must be there and its replacement.
    pub fn start_changed(&self, app: &Upstream, redis: Option<u16>, changes: &[(&str, &str)]) -> Gateway {
        assert_eq!(self.needs_redis(), redis.is_some(), "{}", self.title);
        let (server, rest) = match self.config.strip_prefix("[server]\n") {
            Some(config) => config.split_once("\n\n").unwrap(),
            None => ("", self.config.as_str()),
        };
        let store = format!("127.0.0.1:{}\"\ndeadline = \"10s\"", redis.unwrap_or_default());
        // The test listens on ports of its own.
        let server: String = server.lines().filter(|line| !line.starts_with("listen")).collect::<Vec<_>>().join("\n");
        let config = rest.replace(APP, &app.addr.to_string()).replace(&format!("{REDIS}\""), &store);
        let config = changes.iter().fold(config, |config, (from, to)| changed(&config, from, to));
        let gateway = Gateway::with(&server, &config);
        if redis.is_some() {
            gateway.wait_for_store();
        }
        gateway
    }

    /// Starts a gateway with this config in front of `app`, with its limits in that Redis under `prefix`.
    pub fn start_sharing(&self, app: &Upstream, redis: u16, prefix: &str) -> Gateway {
        let written = format!("[store]\nurl = \"redis://{REDIS}\"\n");
        let store =
            format!("[store]\nurl = \"redis://127.0.0.1:{redis}\"\nprefix = \"{prefix}\"\ndeadline = \"10s\"\n");
        let config = match self.config.contains(&written) {
            true => self.config.replace(&written, &store),
            false => format!("{}\n{store}", self.config),
        };
        let part = Part { title: self.title.clone(), config, examples: Vec::new() };
        let gateway = part.start(app, None);
        gateway.wait_for_store();
        gateway
    }

    /// The same part for a gateway behind a proxy on this machine.
    pub fn behind_proxy(&self) -> Part {
        let (server, rest) = match self.config.strip_prefix("[server]\n") {
            Some(config) => config.split_once("\n\n").unwrap(),
            None => ("", self.config.as_str()),
        };
        let kept: String = server
            .lines()
            .filter(|line| !line.starts_with("trusted_proxies"))
            .map(|line| format!("{line}\n"))
            .collect();
        let config = format!("[server]\n{kept}trusted_proxies = [\"127.0.0.1\"]\n\n{rest}");
        let examples = self.examples.clone();
        Part { title: self.title.clone(), config, examples }
    }

    /// Runs every command and compares its output. `app` is the server that replaces the one of the page.
    pub fn assert_true(&self, words: &str, gateway: &Gateway, redis: Option<u16>, app: Option<&Upstream>) {
        self.assert_true_at(gateway.addr, words, gateway, redis, app);
    }

    /// The same with requests to another address: a proxy in front of the gateway.
    pub fn assert_true_at(
        &self,
        addr: SocketAddr,
        words: &str,
        gateway: &Gateway,
        redis: Option<u16>,
        app: Option<&Upstream>,
    ) {
        let mut receipts: HashMap<String, String> = HashMap::new();
        let mut prelude = words.to_owned();
        for Example { command, shown } in &self.examples {
            if shown.is_empty() {
                // A variable for the commands below.
                prelude += &format!("{command}\n");
                continue;
            }
            let mut script = format!("{prelude}{command}\n");
            script = script.replace(GATEWAY, &addr.to_string()).replace(ADMIN, &gateway.admin.to_string());
            script = script.replace("redis-cli ", &format!("redis-cli -p {} ", redis.unwrap_or_default()));
            for (name, receipt) in &receipts {
                script = script.replace(name, receipt);
            }
            // Programs that ask the config, such as `explain`, read that of the gateway.
            script = script.replace("-c sluicegate.toml", &format!("-c '{}'", gateway.config().display()));
            let program = Path::new(env!("CARGO_BIN_EXE_sluicegate")).parent().unwrap().display();
            let path = format!("{program}:{}", env!("PATH"));
            let output = Command::new("sh").args(["-c", &script]).env("PATH", path).output().unwrap();
            let mut found = String::from_utf8_lossy(&output.stdout).into_owned();
            if let Some(app) = app {
                found = found.replace(&app.addr.to_string(), APP);
            }
            let at = format!("{}: {command}", self.title);
            let missing = "are curl and redis-cli installed? apt-get install curl redis-tools";
            assert!(!found.is_empty(), "{at}: no response; {missing}\n{output:?}");
            match serde_json::from_str::<Value>(shown).ok().filter(Value::is_object) {
                Some(shown) => {
                    let found = serde_json::from_str(&found).unwrap_or_else(|e| panic!("{at}: {e} in {found}"));
                    same(&found, &shown, &at, &mut receipts);
                }
                None => same_text(&found, shown, &at),
            }
        }
    }
}

/// The commands of a `console` block.
pub fn examples(text: &str) -> Vec<Example> {
    let split = |example: &str| {
        // Indented lines continue a command.
        let lines: Vec<&str> = example.lines().collect();
        let end = 1 + lines[1..].iter().take_while(|line| line.starts_with("  ")).count();
        let [command, shown] = [&lines[..end], &lines[end..]].map(|lines| lines.join("\n"));
        Example { command, shown }
    };
    text.trim_start_matches("$ ").split("\n$ ").map(split).collect()
}

/// `text` with `from`, which must be there, replaced by `to`.
pub fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from:?} is not in\n{text}");
    text.replace(from, to)
}

/// An app: 401 for wrong passwords, 500 for `/fail`, two seconds for `/slow`. `?tokens=N` states the true cost. A form with
/// `next` gets a redirect, as after a login in Django.
pub fn app() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            let cost = target.split_once("tokens=").map_or("", |(_, cost)| cost);
            let response = match target.as_str() {
                _ if request.text().contains("password=wrong") => {
                    "HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n".to_owned()
                }
                _ if request.text().contains("next=home") => {
                    "HTTP/1.1 302 Found\r\nlocation: /home\r\ncontent-length: 0\r\n\r\n".to_owned()
                }
                "/fail" => "HTTP/1.1 500 Failed\r\ncontent-length: 0\r\n\r\n".to_owned(),
                "/slow" => {
                    std::thread::sleep(std::time::Duration::from_secs(2));
                    ok("late")
                }
                _ if !cost.is_empty() => {
                    format!("HTTP/1.1 200 OK\r\nx-actual-cost: {cost}\r\ncontent-length: 0\r\n\r\n")
                }
                _ => ok("in"),
            };
            peer.send(response)?;
        }
        Ok(())
    })
}

/// Compares JSON, except for elapsed time. Receipts are stored under the name in the example.
fn same(found: &Value, shown: &Value, at: &str, receipts: &mut HashMap<String, String>) {
    match (found, shown) {
        (Value::Object(found), Value::Object(shown)) => {
            let names = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(found), names(shown), "{at}");
            for (name, value) in shown {
                same(&found[name], value, &format!("{at}/{name}"), receipts);
            }
        }
        (Value::Array(found), Value::Array(shown)) => {
            assert_eq!(found.len(), shown.len(), "{at}");
            for (i, (found, shown)) in found.iter().zip(shown).enumerate() {
                same(found, shown, &format!("{at}/{i}"), receipts);
            }
        }
        (Value::String(found), Value::String(shown)) if at.ends_with("/receipt") => {
            receipts.insert(shown.clone(), found.clone());
        }
        // The hash of a key is stored like a receipt: it differs in each process.
        (Value::String(found), Value::String(shown)) if at.ends_with("/key") && shown.contains("#HASH") => {
            let ((name, digits), (shown_name, word)) = (found.split_once('#').unwrap(), shown.split_once('#').unwrap());
            assert_eq!((name, digits.len()), (shown_name, 16), "{at}: {found}");
            receipts.insert(word.to_owned(), digits.to_owned());
        }
        (Value::Number(found), Value::Number(shown)) if at.ends_with("_ms") => {
            let (found, shown) = (found.as_i64().unwrap(), shown.as_i64().unwrap());
            assert!((shown - 60_000..=shown).contains(&found), "{at}: {found}, not {shown}");
        }
        _ => assert_eq!(found, shown, "{at}"),
    }
}

/// Compares lines. The seconds of a wait may have decreased.
fn same_text(found: &str, shown: &str, at: &str) {
    let lines = |text: &str| text.trim().lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let (found, shown) = (lines(found), lines(shown));
    assert_eq!(found.len(), shown.len(), "{at}\n{found:#?}");
    for (found, shown) in found.iter().zip(&shown) {
        let [(left, found_s), (right, shown_s)] = [found, shown].map(|line| without_waits(line));
        let in_time = found_s.len() == shown_s.len()
            && found_s.iter().zip(&shown_s).all(|(found, shown)| {
                let least = (shown - 5 - shown / 100).max(1);
                (least..=*shown).contains(found)
            });
        assert!(left == right && in_time, "{at}\n  found {found}\n  shown {shown}");
    }
}

/// Splits a line into the text and its waits.
fn without_waits(line: &str) -> (String, Vec<i64>) {
    let (mut text, mut waits, mut rest) = (String::new(), Vec::new(), line);
    while let Some((at, mark)) =
        ["retry-after: ", ";t="].iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min()
    {
        let (before, after) = rest.split_at(at + mark.len());
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        text += before;
        waits.push(after[..digits].parse().unwrap_or_else(|_| panic!("no seconds in {line}")));
        rest = &after[digits..];
    }
    (text + rest, waits)
}
