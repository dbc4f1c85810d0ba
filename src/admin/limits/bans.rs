//! Lists the keys that are banned now. Called by `pages`.
//!
//! The store keeps bans, but cannot list them. So this looks up the keys that this gateway and those that share the
//! store refused last: a banned client that still sends requests is among them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::yield_now;

use crate::admin::limits::peer_refusals::PeerRefusals;
use crate::admin::limits::requests::NamedValues;
use crate::admin::limits::state::describe_ban;
use crate::admin::limits::store_check::run_check;
use crate::admin::limits::{LIMITS_PER_CALL, LimitsApi, refuse_hidden, requests};
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::admin_tokens::Role;
use crate::config::{Config, percent_decode};
use crate::limiting::decision::{ErrorKind, Op};
use crate::limiting::key::state_key::state_key_parts;
use crate::limiting::limit::Limit;
use crate::limiting::{Limiter, clock};

/// Maximum number of keys that are looked up, those refused last.
const KEYS_MAX: usize = 1000;

/// A key that may be banned, as its state key has it.
struct Suspect {
    limit: Arc<Limit>,
    parts: String,
}

impl LimitsApi {
    /// Returns the banned keys of one limit, or of all, for a caller with this role.
    pub async fn list_bans(&self, query: &str, role: Role) -> Result<Value, Problem> {
        refuse_repeated(query, &[])?;
        let name = match query.split_once('=') {
            None if query.is_empty() => None,
            Some(("limit", text)) => {
                let name = percent_decode(text).and_then(|name| String::from_utf8(name).ok());
                Some(name.ok_or_else(|| bad_query("`limit` is not percent-encoded UTF-8"))?)
            }
            _ => return Err(bad_query("the only parameter is `limit`")),
        };
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        let mut hidden = 0;
        let limits: Vec<&Arc<Limit>> = match &name {
            Some(name) => {
                let limit = self.find_limit(config, name)?;
                if hides_keys(config, limit, role) {
                    return Err(refuse_hidden(&format!("the config hides values that the limit {name} reads"), role));
                }
                vec![limit]
            }
            None => {
                let with_ban = config.limits.iter().filter(|limit| limit.ban.is_some());
                let (hide, show): (Vec<_>, Vec<_>) = with_ban.partition(|limit| hides_keys(config, limit, role));
                hidden = hide.len();
                show
            }
        };
        let peers = self.read_peer_refusals().await;
        let (suspects, left_out) = self.find_suspects(&limits, &peers);
        let limiter = self.link.limiter();
        let (mut bans, mut fault) = (Vec::new(), None);
        for chunk in suspects.chunks(LIMITS_PER_CALL) {
            for result in join_all(chunk.iter().map(|suspect| describe_suspect(&limiter, suspect, config))).await {
                match result {
                    Ok(ban) => bans.extend(ban),
                    Err(kind) => fault = fault.or(Some(kind)),
                }
            }
            yield_now().await;
        }
        let mut listed = HashSet::new();
        bans.retain(|ban: &Value| listed.insert((ban["limit"].to_string(), ban["key"].to_string())));
        bans.sort_by_key(|ban| std::cmp::Reverse(ban["left_ms"].as_i64()));
        Ok(json!({
            "bans": bans,
            "gateways": peers.count_gateways(),
            "left_out": left_out,
            "limits_hidden": hidden,
            "store_fault": fault.map(|kind| kind.label()),
        }))
    }

    /// Finds keys that may be banned, those refused last. Returns how many further ones there are, too.
    fn find_suspects(&self, limits: &[&Arc<Limit>], peers: &PeerRefusals) -> (Vec<Suspect>, usize) {
        let log = self.usage.collect_refusals();
        let own = log.newest().flat_map(|refusal| &refusal.checks);
        let own = own.map(|check| (check.limit.name.as_str(), state_key_parts(&check.key)));
        // Others share keys as their logs show them: a hash, or a hidden value, names no key of the store.
        let of_peers = peers.refusals.iter().flat_map(|refusal| &refusal.limits);
        let of_peers = of_peers.filter_map(|check| Some((check.limit.as_str(), check.key.as_deref()?)));
        let of_peers = of_peers.filter(|(_, key)| !key.contains(['#', '*', '!']));
        let limits: HashMap<&str, &Arc<Limit>> = limits.iter().map(|limit| (limit.name.as_str(), *limit)).collect();
        let mut seen: HashSet<(&str, &str)> = HashSet::new();
        let (mut suspects, mut left_out) = (Vec::new(), 0);
        for (name, parts) in own.chain(of_peers) {
            let Some(limit) = limits.get(name).filter(|limit| limit.ban.is_some()) else { continue };
            if parts.is_empty() || !seen.insert((name, parts)) {
                continue;
            }
            if suspects.len() < KEYS_MAX {
                suspects.push(Suspect { limit: Arc::clone(limit), parts: parts.to_owned() });
            } else {
                left_out += 1;
            }
        }
        (suspects, left_out)
    }
}

fn hides_keys(config: &Config, limit: &Limit, role: Role) -> bool {
    !role.includes(Role::Limits) && config.admin.key_display.hides_any(limit.sources())
}

/// Describes the ban of a key; `None` if it is not banned.
async fn describe_suspect(limiter: &Limiter, suspect: &Suspect, config: &Config) -> Result<Option<Value>, ErrorKind> {
    let Suspect { limit, parts } = suspect;
    let values = NamedValues::from_state(limit, parts);
    let Ok((check, None)) = requests::build_check(limiter, limit, &values, 0) else { return Ok(None) };
    let state_key = check.key.clone();
    let Some(ban) = check.ban.as_ref().map(|ban| ban.to_look()) else { return Ok(None) };
    let answer = run_check(limiter, Op::Peek, ban).await?;
    if answer.admitted {
        return Ok(None);
    }
    // The key as this gateway counts it. Another gateway may have reported another spelling.
    let key = config.admin.key_display.show_state_parts(limit.counted_key(), state_key_parts(&state_key).split(','));
    let mut row = describe_ban(&answer);
    // Whole seconds, and not before the end.
    let until_s = clock::now_ms().saturating_add(answer.retry_ms).saturating_add(999).div_euclid(1000);
    let until = Timestamp::from_second(until_s).ok();
    row["until"] = until.map(|time| time.to_string()).into();
    row["limit"] = limit.name.as_str().into();
    row["key"] = key.into();
    Ok(Some(row))
}
