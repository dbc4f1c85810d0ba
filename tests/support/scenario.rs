//! A gateway for a test, in the order in which one says what it is:
//! `scenario().upstream(&app).limit("per-ip", "10/min").lines("burst = 2").start()`.
//!
//! It has one worker, the route `app` for all paths, and a response of its own, unless the test says otherwise.

use std::fmt::Write;

use super::gateway::Gateway;
use super::limiting::{RedisServer, store_section};
use super::upstream::Upstream;

/// The config of a gateway that a test starts.
pub struct Scenario {
    server: String,
    store: String,
    /// The option by which every route serves a request, such as `upstream`.
    action: String,
    routes: Vec<ScenarioRoute>,
    /// The sections of the limits, and others.
    sections: String,
}

struct ScenarioRoute {
    lines: String,
    limits: Vec<String>,
}

pub fn scenario() -> Scenario {
    Scenario {
        server: String::new(),
        store: String::new(),
        action: "respond = { body = \"in\" }".to_owned(),
        routes: Vec::new(),
        sections: String::new(),
    }
}

impl Scenario {
    /// Adds a line to `[server]`.
    pub fn server(mut self, line: &str) -> Scenario {
        self.server += &format!("{line}\n");
        self
    }

    /// Decides in this Redis server, or in memory.
    pub fn store(self, redis: Option<&RedisServer>) -> Scenario {
        match redis {
            Some(redis) => self.redis(&redis.url()),
            None => self,
        }
    }

    /// Decides in Redis, which is waited for. A slow machine causes no outage.
    pub fn redis(mut self, url: &str) -> Scenario {
        self.store = store_section(url);
        self
    }

    /// Decides in Redis if it answers before this deadline. The gateway waits for it only when it starts.
    pub fn redis_within(mut self, url: &str, deadline: &str) -> Scenario {
        self.store = format!("[store]\nurl = \"{url}\"\ndeadline = \"{deadline}\"\n");
        self
    }

    /// Adds a line to `[store]`.
    pub fn store_line(mut self, line: &str) -> Scenario {
        self.store += &format!("{line}\n");
        self
    }

    /// Has all routes forward their requests to this server.
    pub fn upstream(mut self, upstream: &Upstream) -> Scenario {
        self.action = format!("upstream = \"{}\"", upstream.url());
        self
    }

    /// Adds a line to all routes.
    pub fn every_route(mut self, line: &str) -> Scenario {
        self.action += &format!("\n{line}");
        self
    }

    /// Begins a route, to which the limits that follow belong.
    pub fn route(mut self, name: &str, path: &str) -> Scenario {
        let lines = format!("name = \"{name}\"\npath = \"{path}\"\n");
        self.routes.push(ScenarioRoute { lines, limits: Vec::new() });
        self
    }

    /// Adds a line to the last route.
    pub fn route_line(mut self, line: &str) -> Scenario {
        self.last_route().lines += &format!("{line}\n");
        self
    }

    /// Adds routes with one limit each: the path, the name of both, and lines of the limit.
    pub fn limited_routes(self, rate: &str, routes: &[(&str, &str, &str)]) -> Scenario {
        routes
            .iter()
            .fold(self, |scenario, (path, name, lines)| scenario.route(name, path).limit(name, rate).lines(lines))
    }

    /// Adds a limit to the last route.
    pub fn limit(self, name: &str, rate: &str) -> Scenario {
        self.limit_of(name, &format!("rate = \"{rate}\""))
    }

    /// Adds a limit with these lines to the last route.
    pub fn limit_of(mut self, name: &str, lines: &str) -> Scenario {
        self.last_route().limits.push(name.to_owned());
        self.lines(&format!("[limit.{name}]\n{lines}"))
    }

    /// Adds lines to the last limit, or further sections.
    pub fn lines(mut self, lines: &str) -> Scenario {
        self.sections += &format!("{lines}\n");
        self
    }

    pub fn start(self) -> Gateway {
        let gateway = Gateway::with(&self.server, &self.config());
        if !self.store.is_empty() {
            gateway.wait_for_store();
        }
        gateway
    }

    /// Returns the config without `[server]`.
    pub fn config(&self) -> String {
        let mut config = self.store.clone();
        for ScenarioRoute { lines, limits } in &self.routes {
            let _ = write!(config, "[[route]]\n{lines}{}\nlimits = {limits:?}\n", self.action);
        }
        config + &self.sections
    }

    fn last_route(&mut self) -> &mut ScenarioRoute {
        if self.routes.is_empty() {
            let lines = "name = \"app\"\npath = \"/\"\n".to_owned();
            self.routes.push(ScenarioRoute { lines, limits: Vec::new() });
        }
        self.routes.last_mut().unwrap()
    }
}
