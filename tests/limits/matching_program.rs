//! The program under test, on either store. Used by `matching.rs`.

use std::fs;
use std::ops::Deref;

use crate::support::gateway::{Gateway, config};
use crate::support::http::Message;
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

/// A gateway with two workers, which trusts forwarding headers of this machine.
pub struct Program {
    gateway: Gateway,
    /// The `[store]` of every config.
    store: String,
}

const SERVER: &str = "trusted_proxies = [\"127.0.0.1\"]\nworkers = 2";

impl Deref for Program {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.gateway
    }
}

impl Program {
    pub fn start(redis: Option<&RedisServer>, rest: &str) -> Program {
        Program::start_with(redis, rest, &[])
    }

    /// Starts the program with further files beside the config.
    pub fn start_with(redis: Option<&RedisServer>, rest: &str, files: &[(&str, &str)]) -> Program {
        let url = redis.map_or("memory:".to_owned(), RedisServer::url);
        let store = format!("[store]\nurl = \"{url}\"\ndeadline = \"10s\"\non_error = \"closed\"\n");
        let gateway = Gateway::launch(&[], |dir| {
            for (name, text) in files {
                fs::write(dir.join(name), text).unwrap();
            }
            let path = dir.join("sluicegate.toml");
            fs::write(&path, config(SERVER, &format!("{store}{rest}"))).unwrap();
            vec!["run".to_owned(), "-c".to_owned(), path.display().to_string()]
        });
        if redis.is_some() {
            gateway.wait_for_store();
        }
        Program { gateway, store }
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn fetch(&self, target: &str, fields: &str) -> Message {
        self.gateway.fetch(&format!("GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\n"))
    }

    /// Returns how many of `count` equal requests are admitted.
    #[track_caller]
    pub fn admitted(&self, count: usize, target: &str, fields: &str) -> usize {
        (0..count)
            .filter(|_| match self.fetch(target, fields).status() {
                200 => true,
                429 => false,
                status => panic!("{status}"),
            })
            .count()
    }

    /// Reloads another config and returns the summary of the reload.
    #[track_caller]
    pub fn reload(&self, rest: &str) -> String {
        let before = self.log().len();
        self.gateway.reload(&config(SERVER, &format!("{}{rest}", self.store)));
        wait_until("the reload is logged", || self.log()[before..].contains("config reloaded"));
        self.log()[before..].to_owned()
    }

    /// The value of a series, 0 where there is none.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metric(name, labels).unwrap_or_default()
    }

    pub fn decisions(&self, limit: &str, decision: &str) -> f64 {
        self.count("limit_decisions_total", &[("decision", decision), ("limit", limit), ("route", "/")])
    }
}

/// A route with one limit `x`.
pub fn one(limit: &str) -> String {
    format!("[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nalgorithm = \"fixed_window\"\n{limit}\n")
}
