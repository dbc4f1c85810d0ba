//! Translates `limit_req` and `limit_conn` with their zones to limits.
//!
//! Input: the zones of `http`, and the directives in effect at a location. Output: limits, and the names that a route
//! lists; what cannot be said exactly closes the route. `keys` translates the keys of zones, and `entries` the entries of
//! a `map`. `maps` composes a `map` of a `map`.
//!
//! To translate another kind of key, add it in `keys`.

pub mod entries;
pub mod keys;
pub mod maps;

use std::collections::{BTreeSet, HashMap};

use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::limits::keys::{TranslatedKey, Variables, ZoneKey, translate_key};
use crate::import::nginx::scope::Scope;
use crate::import::syntax::{Directive, shorten};
use crate::import::text::format_duration;

/// The largest `burst` that is counted exactly at any rate.
const BURST_MAX: u64 = 1_000_000_000;
/// The most zones.
const ZONES_MAX: usize = 1000;
const RATE_MAX: u64 = 1_000_000_000;
/// The longest queue: one day.
const QUEUE_MAX_MS: u64 = 86_400_000;
const IN_FLIGHT_MAX: u64 = 100_000;
/// Why a limit with this status differs.
pub const CLOSES_CONNECTION: &str =
    "nginx closes the connection instead of a refusal; Sluicegate refuses with status 444";
const DRY_REQUESTS: &str = "limit_req_dry_run";
const DRY_CONNECTIONS: &str = "limit_conn_dry_run";

/// The zones of all files.
#[derive(Default)]
pub struct Zones {
    zones: HashMap<String, Zone>,
    /// The lines of each zone's first use. A use with other lines has its own budget.
    uses: HashMap<String, String>,
}

struct Zone {
    key: std::result::Result<TranslatedKey, String>,
    /// The requests and their period in ms. `None` for connections.
    rate: Option<(u64, u64)>,
    /// The numbers of each `limit_req` or `limit_conn` of the zone.
    uses: BTreeSet<UsedNumbers>,
}

/// The numbers of a `limit_req` or `limit_conn`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UsedNumbers {
    /// The `burst`, or the number of connections.
    most: u64,
    /// The requests of a `burst` that do not wait. `None` for `nodelay`.
    delay: Option<u64>,
}

impl Zone {
    /// Returns the largest number, if several directives use the zone with different numbers.
    fn shared_most(&self) -> Option<u64> {
        self.uses.last().map(|largest| largest.most).filter(|_| self.uses.len() > 1)
    }
}

impl Zones {
    /// Defines the zone of a `limit_req_zone` or `limit_conn_zone`.
    pub fn define_zone(&mut self, directive: &Directive, variables: &Variables) -> Result<()> {
        let mut rate = None;
        let mut name = "";
        for arg in directive.args.iter().skip(1) {
            match arg.split_once('=') {
                Some(("zone", zone)) => name = zone.split(':').next().unwrap_or(""),
                Some(("rate", text)) => {
                    rate = Some(parse_rate(text).ok_or_else(|| {
                        directive.error(format!("`{}` is not a rate; write rate=10r/s or rate=10r/m", shorten(text)))
                    })?)
                }
                _ if arg == "sync" => {}
                _ => return Err(directive.error(format!("unknown parameter `{}`", shorten(arg)))),
            }
        }
        if name.is_empty() {
            return Err(directive.error("the zone has no name: zone=NAME:SIZE"));
        }
        if directive.name == "limit_req_zone" && rate.is_none() {
            return Err(directive.error("the zone has no rate: rate=10r/s"));
        }
        if self.zones.len() >= ZONES_MAX {
            return Err(directive.error(format!("there are more than {ZONES_MAX} zones")));
        }
        let zone = Zone { key: translate_key(directive.arg(0), variables), rate, uses: BTreeSet::new() };
        match self.zones.insert(name.to_owned(), zone) {
            Some(_) => Err(directive.error(format!("the zone `{}` is defined twice", shorten(name)))),
            None => Ok(()),
        }
    }

    /// Finds the numbers with which the directives of a block use the zones.
    pub fn find_uses(&mut self, block: &[Directive]) -> Result<()> {
        for directive in block {
            let used = match directive.name.as_str() {
                "limit_req" => Some(read_limit_req(directive)?),
                "limit_conn" => Some((directive.arg(0), UsedNumbers { most: read_number(directive)?, delay: None })),
                _ => None,
            };
            if let Some((name, numbers)) = used
                && let Some(zone) = self.zones.get_mut(name)
            {
                zone.uses.insert(numbers);
            }
            self.find_uses(directive.inner())?;
        }
        Ok(())
    }

    /// Adds a comment to a route with limits whose `client_max_body_size` is written: nginx does not count larger bodies.
    /// Without it, the same is true of every config, as the manual says.
    pub fn comment_on_body_size(at: &Directive, scope: &Scope, out: &mut ImportedConfig, body: &mut RouteBody) {
        let refuses = |list: &str, dry: &str| !scope.list(list).is_empty() && !scope.is_on(dry);
        if at.arg(0) != "0" && (refuses("limit_req", DRY_REQUESTS) || refuses("limit_conn", DRY_CONNECTIONS)) {
            let why = "limits count requests with larger bodies; nginx refuses them with 413 before it counts them";
            body.add_remark(out.remarks.add(at, why));
        }
    }

    /// Adds the limits in effect in `scope` to a route of `server`.
    pub fn apply_limits(
        &mut self,
        scope: &Scope,
        server: usize,
        out: &mut ImportedConfig,
        body: &mut RouteBody,
    ) -> Result<()> {
        for directive in scope.list("limit_req") {
            self.limit_requests(directive, scope, server, out, body)?;
        }
        for directive in scope.list("limit_conn") {
            self.limit_connections(directive, scope, server, out, body)?;
        }
        Ok(())
    }

    fn limit_requests(
        &mut self,
        at: &Directive,
        scope: &Scope,
        server: usize,
        out: &mut ImportedConfig,
        body: &mut RouteBody,
    ) -> Result<()> {
        let (name, UsedNumbers { most: burst, delay }) = read_limit_req(at)?;
        let status = read_status(scope, "limit_req_status", at)?;
        let Some((zone, rate)) = self.zones.get(name).and_then(|zone| Some((zone, zone.rate?))) else {
            lose_limit(at, "these files do not define this zone", scope.is_on(DRY_REQUESTS), out, body);
            return Ok(());
        };
        let key = match &zone.key {
            Ok(key) => key.clone(),
            Err(why) => {
                lose_limit(at, why, scope.is_on(DRY_REQUESTS), out, body);
                return Ok(());
            }
        };
        let shared_most = zone.shared_most();
        let mut lines = vec![format!("rate = \"{}\"", format_rate(rate))];
        match delay {
            Some(delay) => match compute_queue_ms(burst, rate) {
                Some(queue) => {
                    lines.insert(0, "algorithm = \"leaky_bucket\"".to_owned());
                    lines.push(format!("queue = {}", format_duration(queue)));
                    lines.extend((delay > 0).then(|| format!("delay_after = {delay}")));
                }
                None => {
                    let why = "the same requests are admitted, but none waits, because no queue can have this length";
                    body.add_remark(out.remarks.add(at, why));
                    lines.push(format!("burst = {}", burst + 1));
                }
            },
            None => lines.push(format!("burst = {}", burst + 1)),
        }
        let dry_run = scope.is_on(DRY_REQUESTS);
        let used = ZoneUse { at, name, key, lines, dry_run, status, server };
        let shared =
            shared_most.map(|most| vec![format!("rate = \"{}\"", format_rate(rate)), format!("burst = {}", most + 1)]);
        self.add_shared_limit(used, shared, out, body);
        Ok(())
    }

    fn limit_connections(
        &mut self,
        at: &Directive,
        scope: &Scope,
        server: usize,
        out: &mut ImportedConfig,
        body: &mut RouteBody,
    ) -> Result<()> {
        let (name, number) = (at.arg(0), read_number(at)?);
        let status = read_status(scope, "limit_conn_status", at)?;
        let shared_most = self.zones.get(name).and_then(Zone::shared_most);
        let key = match self.zones.get(name) {
            Some(Zone { key: Ok(key), rate: None, .. }) => key.clone(),
            Some(Zone { key: Err(why), .. }) => {
                lose_limit(at, why, scope.is_on(DRY_CONNECTIONS), out, body);
                return Ok(());
            }
            _ => {
                lose_limit(at, "these files do not define this zone", scope.is_on(DRY_CONNECTIONS), out, body);
                return Ok(());
            }
        };
        let lines = limit_in_flight(number);
        let used = ZoneUse { at, name, key, lines, dry_run: scope.is_on(DRY_CONNECTIONS), status, server };
        self.add_shared_limit(used, shared_most.map(limit_in_flight), out, body);
        Ok(())
    }

    /// Adds a limit. `shared`: the lines of the limit that all uses of the zone have together, if their numbers differ. It
    /// admits no more than the zone.
    fn add_shared_limit(
        &mut self,
        used: ZoneUse,
        shared: Option<Vec<String>>,
        out: &mut ImportedConfig,
        body: &mut RouteBody,
    ) {
        let shared = shared.filter(|_| !used.dry_run);
        let is_whole = shared.as_ref() == Some(&used.lines);
        if let Some(lines) = shared {
            self.add_limit(ZoneUse { lines, key: used.key.clone(), ..used }, out, body);
        }
        if !is_whole {
            self.add_limit(used, out, body);
        }
    }

    fn add_limit(&mut self, used: ZoneUse, out: &mut ImportedConfig, body: &mut RouteBody) {
        let ZoneUse { at, name, key: TranslatedKey { keys, remark }, lines, dry_run, status, server } = used;
        if status == 444 && !dry_run {
            body.add_remark(out.remarks.add(at, CLOSES_CONNECTION));
        }
        if body.has_access_rules && !dry_run && !keys.iter().all(ZoneKey::is_per_client) {
            let why = "clients that `deny` refuses are not counted, although other clients have the same key";
            body.add_remark(out.remarks.add(at, why));
        }
        if let Some(why) = remark {
            body.add_remark(out.remarks.add(at, why));
        }
        let format = |key: &ZoneKey| {
            let mut lines = lines.clone();
            lines.extend(key.format_lines());
            lines.extend(dry_run.then(|| "mode = \"shadow\"".to_owned()));
            lines
        };
        let limits: Vec<Vec<String>> = keys.iter().map(format).collect();
        let text = limits.concat().join("\n");
        let first = self.uses.entry(name.to_owned()).or_insert_with(|| text.clone());
        if *first != text {
            let why = "this zone is used with different numbers elsewhere, so this use is a limit with its own budget, next to one \
                       that all uses share, with the largest numbers";
            body.add_remark(out.remarks.add(at, why));
        }
        for (key, lines) in keys.iter().zip(limits) {
            let server = if key.per_server { server.to_string() } else { String::new() };
            let identity = format!("{name}\n{server}\n{}", lines.join("\n"));
            let (limit, other_status) = out.define_limit(identity, name, lines, status);
            if other_status {
                let why = "this zone refuses with another status elsewhere, and this route uses that status, too";
                body.add_remark(out.remarks.add(at, why));
            }
            if !body.limits.contains(&limit) {
                body.limits.push(limit);
            }
        }
    }
}

/// Reads the zone of a `limit_req`, and its numbers.
fn read_limit_req(at: &Directive) -> Result<(&str, UsedNumbers)> {
    let (mut burst, mut delay, mut name) = (0, Some(0), "");
    for arg in &at.args {
        let number = |text: &str| match text.parse::<u64>() {
            Ok(number) if number <= BURST_MAX => Ok(number),
            _ => Err(at.error(format!("`{}` is not a number up to {BURST_MAX}", shorten(text)))),
        };
        match arg.split_once('=') {
            Some(("zone", zone)) => name = zone,
            Some(("burst", text)) => burst = number(text)?,
            Some(("delay", text)) => delay = Some(number(text)?),
            _ if arg == "nodelay" => delay = None,
            _ => return Err(at.error(format!("unknown parameter `{}`", shorten(arg)))),
        }
    }
    Ok((name, UsedNumbers { most: burst, delay: delay.filter(|delay| *delay < burst) }))
}

/// Reads the number of a `limit_conn`.
fn read_number(at: &Directive) -> Result<u64> {
    let number = at.arg(1).parse::<u64>().ok().filter(|number| (1..=65_535).contains(number));
    number.ok_or_else(|| at.error("the number of connections must be from 1 to 65535"))
}

/// Closes a route whose limit cannot be translated: a limit is a protection. A dry run refuses nobody.
fn lose_limit(at: &Directive, why: &str, is_dry: bool, out: &mut ImportedConfig, body: &mut RouteBody) {
    let number = out.remarks.add(at, &format!("this limit is left out: {why}"));
    if is_dry { body.add_remark(number) } else { body.close(number) }
}

/// One use of a zone.
struct ZoneUse<'a> {
    at: &'a Directive,
    name: &'a str,
    key: TranslatedKey,
    lines: Vec<String>,
    dry_run: bool,
    status: u16,
    server: usize,
}

/// Formats the lines of a limit of requests in flight. nginx frees the slot of a client at once when it disconnects.
pub fn limit_in_flight(number: u64) -> Vec<String> {
    vec![
        "algorithm = \"concurrency\"".to_owned(),
        format!("in_flight = {}", number.min(IN_FLIGHT_MAX)),
        "linger = \"0s\"".to_owned(),
    ]
}

fn read_status(scope: &Scope, name: &str, at: &Directive) -> Result<u16> {
    match scope.get(name) {
        None => Ok(503),
        Some(directive) => {
            directive.arg(0).parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(|| {
                at.error(format!("`{name} {}` is not a status from 400 to 599", shorten(directive.arg(0))))
            })
        }
    }
}

fn parse_rate(text: &str) -> Option<(u64, u64)> {
    let (count, per_ms) = match text.strip_suffix("r/s") {
        Some(count) => (count, 1000),
        None => (text.strip_suffix("r/m")?, 60_000),
    };
    let count = count.parse().ok().filter(|count| (1..=RATE_MAX).contains(count))?;
    Some((count, per_ms))
}

fn format_rate((count, per_ms): (u64, u64)) -> String {
    format!("{count}/{}", if per_ms == 1000 { "s" } else { "min" })
}

/// Computes the queue in ms in which `burst` requests wait, rounded up because nginx counts in ms. Returns `None` if
/// several requests share a millisecond, or if the queue would be too long.
fn compute_queue_ms(burst: u64, (count, per_ms): (u64, u64)) -> Option<u64> {
    let queue = (burst * per_ms).div_ceil(count);
    let is_close = queue * count - burst * per_ms < per_ms;
    (is_close && queue <= QUEUE_MAX_MS && count <= 1000 * per_ms).then_some(queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hold_the_burst() {
        assert_eq!(compute_queue_ms(20, (10, 1000)), Some(2000));
        assert_eq!(compute_queue_ms(1, (3, 1000)), Some(334));
        assert_eq!(compute_queue_ms(5, (10_000, 1000)), None);
        assert_eq!(compute_queue_ms(100_000, (10_000, 1000)), Some(10_000));
        assert_eq!(compute_queue_ms(2000, (1, 60_000)), None);
        assert_eq!(parse_rate("10r/s"), Some((10, 1000)));
        assert_eq!(parse_rate("6r/m"), Some((6, 60_000)));
        assert_eq!(parse_rate("0r/s"), None);
        assert_eq!(parse_rate("10/s"), None);
    }
}
