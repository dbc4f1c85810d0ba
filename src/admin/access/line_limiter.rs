//! Bounds the lines of the audit log, so that nobody fills the disk with them. Called by `mod.rs`.
//!
//! Each [`LineKind`] except `Config` has a bound per minute for each subject, and one for all subjects together.
//! Requests beyond the bounds are counted, and a later line reports their number.

use std::collections::HashMap;
use std::time::Instant;

use crate::admin::access::Peer;
use crate::admin::access::attempts::WINDOW;
use crate::labels::labels;

labels! {
    /// The kind of request that a line is about; selects the bound.
    LineKind:
    /// A change of the config: always has its line.
    Config = "config",
    /// A change of usage or of another state.
    Change = "change",
    /// A request of a known caller that failed or was refused, or that concerns sessions.
    Failed = "failed",
    /// A request of a peer that did not prove who it is.
    Unproven = "unproven",
}

/// The token or peer whose lines share a bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LineSubject {
    /// Name of the token; `None` if none is configured, or the caller is unknown.
    pub token: Option<String>,
    /// `None` if the bound is for all peers together.
    pub peer: Option<Peer>,
}

/// Number of requests of a subject that were left out of the log.
#[derive(Debug, PartialEq, Eq)]
pub struct LineSummary {
    pub kind: LineKind,
    /// `None` for several that are not listed.
    pub subject: Option<LineSubject>,
    pub count: u64,
}

/// The lines written and left out in the current minute.
#[derive(Default)]
pub struct LineLimiter([LineCounts; LineKind::ALL.len()]);

#[derive(Default)]
struct LineCounts {
    subjects: HashMap<LineSubject, LineCount>,
    total: Option<LineCount>,
}

struct LineCount {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Maximum number of subjects that are counted per kind. For one more, the one that was seen first is forgotten.
const SUBJECTS_MAX: usize = 1024;
/// Subjects that have a line of their own in the summary, per kind.
const LISTED_MAX: usize = 20;

impl LineKind {
    /// Returns the number of lines in a minute for one subject and for all; `None` if there is no bound.
    fn bounds(self) -> Option<(u32, u32)> {
        match self {
            LineKind::Config => None,
            LineKind::Change => Some((600, 6000)),
            LineKind::Failed | LineKind::Unproven => Some((10, 200)),
        }
    }

    /// Returns the subject whose bound applies to a request.
    fn subject(self, token: Option<&str>, peer: Peer) -> LineSubject {
        let token = token.map(str::to_owned);
        match self {
            LineKind::Config | LineKind::Change => LineSubject { token, peer: None },
            LineKind::Failed => LineSubject { token, peer: Some(peer) },
            LineKind::Unproven => LineSubject { token: None, peer: Some(peer) },
        }
    }
}

impl LineCount {
    fn new(now: Instant) -> LineCount {
        LineCount { since: now, lines: 0, left_out: 0 }
    }

    fn restart_if_over(&mut self, now: Instant) {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.lines) = (now, 0);
        }
    }
}

impl LineLimiter {
    /// Returns whether a line may be written; otherwise counts the request for the summary.
    pub fn take_line(&mut self, kind: LineKind, token: Option<&str>, peer: Peer, now: Instant) -> bool {
        let Some((own_most, total_most)) = kind.bounds() else { return true };
        self.0[kind as usize].take_line(kind.subject(token, peer), own_most, total_most, now)
    }

    /// Returns the subjects with requests left out, and their numbers.
    pub fn take_summaries(&mut self) -> Vec<LineSummary> {
        let all = LineKind::ALL.iter().zip(&mut self.0);
        all.flat_map(|(kind, counts)| counts.take_summaries(*kind)).collect()
    }
}

impl LineCounts {
    fn take_line(&mut self, subject: LineSubject, own_most: u32, total_most: u32, now: Instant) -> bool {
        let total = self.total.get_or_insert_with(|| LineCount::new(now));
        total.restart_if_over(now);
        let fits = total.lines < total_most;
        if !self.subjects.contains_key(&subject) && self.subjects.len() >= SUBJECTS_MAX {
            self.forget_oldest(now);
        }
        let own = self.subjects.entry(subject).or_insert_with(|| LineCount::new(now));
        own.restart_if_over(now);
        if !fits || own.lines >= own_most {
            own.left_out += 1;
            return false;
        }
        own.lines += 1;
        if let Some(total) = &mut self.total {
            total.lines += 1;
        }
        true
    }

    fn take_summaries(&mut self, kind: LineKind) -> Vec<LineSummary> {
        let subjects = self.subjects.iter_mut().filter(|(_, own)| own.left_out > 0);
        let mut all: Vec<LineSummary> = subjects
            .map(|(subject, own)| LineSummary {
                kind,
                subject: Some(subject.clone()),
                count: std::mem::take(&mut own.left_out),
            })
            .collect();
        all.sort_by_key(|summary| std::cmp::Reverse(summary.count));
        let rest = all.split_off(all.len().min(LISTED_MAX));
        let forgotten = self.total.as_mut().map_or(0, |total| std::mem::take(&mut total.left_out));
        let count = rest.iter().map(|summary| summary.count).sum::<u64>() + forgotten;
        all.extend((count > 0).then_some(LineSummary { kind, subject: None, count }));
        all
    }

    fn forget_oldest(&mut self, now: Instant) {
        let oldest = self.subjects.iter().min_by_key(|(_, own)| own.since).map(|(subject, _)| subject.clone());
        if let Some(gone) = oldest.and_then(|subject| self.subjects.remove(&subject)) {
            self.total.get_or_insert_with(|| LineCount::new(now)).left_out += gone.left_out;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn peer(number: u32) -> Peer {
        Peer::Tcp(Ipv4Addr::from_bits(number).into())
    }

    fn written(table: &mut LineLimiter, kind: LineKind, token: Option<&str>, count: u32, now: Instant) -> usize {
        (0..count).filter(|_| table.take_line(kind, token, peer(1), now)).count()
    }

    #[test]
    fn lines_are_bounded_and_the_rest_is_summed_up() {
        let (mut table, now) = (LineLimiter::default(), Instant::now());
        assert_eq!(written(&mut table, LineKind::Unproven, None, 1000, now), 10);
        let subject = Some(LineSubject { token: None, peer: Some(peer(1)) });
        assert_eq!(table.take_summaries(), [LineSummary { kind: LineKind::Unproven, subject, count: 990 }]);
        assert_eq!(table.take_summaries(), []);
        let others = (0..3000).filter(|number| table.take_line(LineKind::Unproven, None, peer(10 + number), now));
        assert_eq!(others.count(), 190);
        assert!(table.0[LineKind::Unproven as usize].subjects.len() <= SUBJECTS_MAX);
        let counted: u64 = table.take_summaries().iter().map(|summary| summary.count).sum();
        assert_eq!(counted, 3000 - 190, "those of forgotten peers too");
        assert_eq!(written(&mut table, LineKind::Unproven, None, 20, now + WINDOW), 10);
    }

    #[test]
    fn a_token_has_a_bound_of_its_own_for_each_kind() {
        let (mut table, now) = (LineLimiter::default(), Instant::now());
        written(&mut table, LineKind::Unproven, None, 3000, now);
        assert_eq!(written(&mut table, LineKind::Failed, Some("low"), 1000, now), 10);
        assert_eq!(written(&mut table, LineKind::Failed, Some("other"), 1000, now), 10);
        assert_eq!(written(&mut table, LineKind::Change, Some("low"), 1000, now), 600);
        assert_eq!(written(&mut table, LineKind::Change, Some("other"), 1, now), 1);
        assert_eq!(written(&mut table, LineKind::Config, Some("low"), 10_000, now), 10_000);
    }
}
