//! Shares the last refusals of each gateway with those that use the same store, so that each can say why a customer was
//! refused, whichever gateway refused it. `admin::peers` calls for the writing every few seconds; `refusals` and
//! `customers` read.
//!
//! A gateway writes its refusals as it describes them itself: keys as its log shows them, so no secret reaches the
//! store in this way. Those of others are data, so only valid ones are used.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::admin::limits::LimitsApi;
use crate::admin::limits::refusals::RefusalReport;
use crate::limiting::store::redis::gateway_texts::{GatewayText, PeerText};
use crate::limiting::usage::refusals::RecordedRefusal;

/// Number of refusals that a gateway shares, the newest.
const SHARED_MAX: usize = 100;
/// Number of shared refusals with the same limit and key, the newest: one client must not displace all others.
const SHARED_PER_KEY: usize = 10;
/// Interval at which the same refusals are written again, before the store forgets them.
const REWRITE_INTERVAL: Duration = Duration::from_secs(300);
/// How long the refusals that were read are used again.
const FRESH: Duration = Duration::from_secs(1);

/// The newest refusal that was written, and the refusals that were read last.
#[derive(Default)]
pub struct PeerExchange {
    /// Time and request id of the newest refusal that was written, and when that was.
    written: RefCell<Option<(String, Option<String>, Instant)>>,
    read: RefCell<Option<(Instant, Rc<PeerRefusals>)>>,
}

/// The refusals of the gateways that share the store with this one.
#[derive(Default)]
pub struct PeerRefusals {
    pub refusals: Vec<RefusalReport>,
    /// Number of other gateways. Zero if the store does not answer.
    peers: usize,
}

impl PeerRefusals {
    /// Returns the number of gateways, with this one, whose refusals are known.
    pub fn count_gateways(&self) -> usize {
        self.peers + 1
    }
}

impl LimitsApi {
    /// Writes the last refusals of this gateway to the store if there are new ones, or the last write is long ago.
    pub async fn share_refusals(&self) {
        let snapshot = self.current.load_full();
        let reports: Vec<RefusalReport> = {
            let log = self.usage.collect_refusals();
            let shared = select_shared(log.newest());
            shared.into_iter().map(|refusal| self.describe(refusal, &snapshot.config)).collect()
        };
        let Some(newest) = reports.first() else { return };
        let is_written = self.peers.written.borrow().as_ref().is_some_and(|(time, id, at)| {
            (time, id) == (&newest.time, &newest.request_id) && at.elapsed() < REWRITE_INTERVAL
        });
        if is_written {
            return;
        }
        let owner = (snapshot.config.store.prefix.as_str(), self.link.gateways().name());
        let write = self.link.store().write_text(owner, GatewayText::Refusals, &write_reports(&reports)).await;
        // If the store does not answer, the next attempt writes them.
        if matches!(write, Some(Ok(()))) {
            *self.peers.written.borrow_mut() = Some((newest.time.clone(), newest.request_id.clone(), Instant::now()));
        }
    }

    /// Reads the last refusals of the other gateways. Without an answer of the store there are none.
    pub(super) async fn read_peer_refusals(&self) -> Rc<PeerRefusals> {
        if let Some((_, peers)) = self.peers.read.borrow().as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return peers.clone();
        }
        let snapshot = self.current.load_full();
        let reading = self.link.store().read_texts(&snapshot.config.store.prefix, GatewayText::Refusals).await;
        let own_name = self.link.gateways().name();
        let mut peers = PeerRefusals::default();
        for peer in reading.and_then(Result::ok).unwrap_or_default().iter().filter(|peer| peer.name != own_name) {
            peers.peers += 1;
            peers.refusals.extend(read_reports(peer));
        }
        let peers = Rc::new(peers);
        *self.peers.read.borrow_mut() = Some((Instant::now(), peers.clone()));
        peers
    }
}

/// Selects the refusals to share from all, the newest first. One by several limits is of use as long as one of its keys
/// is rare.
fn select_shared<'r>(newest: impl Iterator<Item = &'r RecordedRefusal>) -> Vec<&'r RecordedRefusal> {
    let mut counts: HashMap<(u64, &str), usize> = HashMap::new();
    let is_rare = |refusal: &&'r RecordedRefusal| {
        let mut is_rare = false;
        for check in &refusal.checks {
            let count = counts.entry((check.limit.store_ref.id, &check.key)).or_default();
            *count += 1;
            is_rare |= *count <= SHARED_PER_KEY;
        }
        is_rare
    };
    newest.filter(is_rare).take(SHARED_MAX).collect()
}

/// Writes the newest reports, as many as others read.
fn write_reports(reports: &[RefusalReport]) -> String {
    let mut text = String::from("[");
    for report in reports {
        let Ok(report) = serde_json::to_string(report) else { continue };
        if text.len() + report.len() + 2 > GatewayText::Refusals.max_len() {
            break;
        }
        text.push_str(if text.len() > 1 { "," } else { "" });
        text.push_str(&report);
    }
    text + "]"
}

/// Reads the valid reports of a gateway.
fn read_reports(peer: &PeerText) -> Vec<RefusalReport> {
    let text = peer.text.as_ref().map_or("[]", |(text, _)| text);
    let reports: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    let reports = reports.iter().take(SHARED_MAX).filter_map(|report| serde_json::from_str(report.get()).ok());
    let valid = reports.filter(RefusalReport::is_valid);
    valid.map(|report| RefusalReport { gateway: peer.name.clone(), ..report }).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn report(number: usize, route: &str) -> RefusalReport {
        RefusalReport {
            time: format!("2026-01-01T00:00:00.{number:03}Z"),
            request_id: Some(number.to_string()),
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            route: route.to_owned(),
            status: 429,
            limits: Vec::new(),
            gateway: String::new(),
            host: "a".to_owned(),
        }
    }

    fn read(text: &str) -> Vec<RefusalReport> {
        read_reports(&PeerText { name: "f".repeat(32), text: Some((text.to_owned(), 0)) })
    }

    #[test]
    fn the_newest_reports_that_fit_are_read_again() {
        let reports: Vec<RefusalReport> = (0..SHARED_MAX).map(|number| report(number, "api")).collect();
        let copies = read(&write_reports(&reports));
        assert_eq!(copies.len(), SHARED_MAX);
        assert!(copies.iter().all(|copy| copy.gateway == "f".repeat(32)));
        let long: Vec<RefusalReport> = (0..9).map(|number| report(number, &"r".repeat(10_000))).collect();
        let text = write_reports(&long);
        assert!(text.len() <= GatewayText::Refusals.max_len());
        let ids: Vec<_> = read(&text).into_iter().filter_map(|report| report.request_id).collect();
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5"]);
    }

    #[test]
    fn what_no_gateway_writes_is_left_out() {
        let valid = serde_json::to_string(&report(1, "api")).unwrap();
        let wrong = [
            valid.replace("2026-01", "soon"),
            valid.replace("127.0.0.1", "<b>"),
            valid.replace("429", "-1"),
            valid.replace("\"limits\":[]", "\"limits\":[{}]"),
            "1".to_owned(),
        ];
        for wrong in wrong {
            assert_ne!(wrong, valid);
            assert_eq!(read(&format!("[{wrong},{valid}]")).len(), 1, "{wrong}");
        }
        assert_eq!(read("{").len() + read("").len() + read("[[]]").len() + read(&format!("[{valid}")).len(), 0);
    }
}
