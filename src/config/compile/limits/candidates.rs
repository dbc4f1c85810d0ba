//! Compiles `candidate_of`: checks which limits may be candidates of which, and adds the limits that no list needs to
//! name: candidates and wider tiers. Called by `limits`, and for each list of limits.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::compile::names::Definitions;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::{At, Section};
use crate::config::schema::{limit, route};
use crate::config::source::SourceTexts;
use crate::limiting::limit::{Limit, Mode};

/// The limits to which one option refers, by the name of the limit that has the option.
pub type References<'a> = HashMap<&'a str, At<String>>;

/// The limits that apply wherever another one is listed, by the name of that: its wider tiers, and its candidates with
/// theirs.
#[derive(Default)]
pub struct CompanionLists(HashMap<String, Vec<Arc<Limit>>>);

/// Reads `mode`. A candidate is in shadow mode without saying so.
pub fn read_mode(section: &Section, is_candidate: bool) -> Mode {
    let mode = section.read(&limit::MODE);
    if let (true, Some(Mode::Enforce), Some(node)) = (is_candidate, mode, section.node(&limit::MODE)) {
        let help = "remove one of the two: a limit is a candidate until it replaces its incumbent";
        section.report_fault::<()>(limit::MODE.name, node, "a candidate (`candidate_of`) never refuses", help);
    }
    if is_candidate { Mode::Shadow } else { section.get(&limit::MODE) }
}

/// Reports candidates that cannot be compared with their incumbent. `after`: the limits that others come after.
pub fn check_candidates(
    sources: &SourceTexts,
    limits: &Definitions<Arc<Limit>>,
    candidates: &References,
    after: &References,
) {
    for (name, At { place, value: incumbent }) in candidates {
        limits.find(sources, *place, incumbent);
        let report = |what: &str, help: &str| {
            let message = format!("`candidate_of` in [limit.{name}]: {what}");
            sources.add_mistake(Diagnostic::new(*place, message).with_help(help));
        };
        if incumbent == name {
            report("it is a candidate of itself", "name the limit that it may replace");
        } else if candidates.contains_key(incumbent.as_str()) {
            report(
                &format!("`{incumbent}` is a candidate itself, and refuses nothing"),
                "name the active limit; several candidates may name the same",
            );
        }
        let chained_name = [name, incumbent.as_str()]
            .into_iter()
            .find(|limit| after.contains_key(limit) || after.values().any(|At { value: base, .. }| base == limit));
        if let Some(chained_name) = chained_name {
            report(
                &format!(
                    "`{chained_name}` is part of a chain (`after`), and decides only together with the rest of it"
                ),
                "try the new numbers with mode = \"shadow\" in a chain of its own",
            );
        }
    }
}

impl CompanionLists {
    /// Collects the companions among `limits`, in file order.
    pub fn collect(limits: &Definitions<Arc<Limit>>) -> CompanionLists {
        let mut companions = CompanionLists::default();
        for limit in limits.places().filter_map(|(name, _)| limits.get(name)) {
            let tier_of = limit.tier_of.as_ref().filter(|_| limit.is_wider_tier());
            if let Some(leader) = limit.candidate_of.as_ref().or(tier_of) {
                companions.0.entry(leader.clone()).or_default().push(limit);
            }
        }
        // A candidate precedes its tiers, which have been compiled before it.
        companions.0.values_mut().for_each(|limits| limits.sort_by_key(|limit| limit.is_wider_tier()));
        companions
    }

    /// Adds the companions of all limits in a list, behind them. A list may name candidates too.
    /// `names`: the names in the list, with their places.
    pub fn add_to_list(
        &self,
        section: &Section,
        names: &[At<String>],
        listed: Vec<Arc<Limit>>,
    ) -> Option<Vec<Arc<Limit>>> {
        if self.0.is_empty() {
            return Some(listed);
        }
        let (mut all, mut ok) = (Vec::with_capacity(listed.len()), Some(()));
        for limit in &listed {
            if let Some(leader) = limit.tier_of.as_ref().filter(|_| limit.is_wider_tier()) {
                let place = find_place(section, names, &limit.name);
                let what = format!("`{}` is a tier of `{leader}`", limit.name);
                ok = section.report_fault_at(
                    route::LIMITS.name,
                    place,
                    &what,
                    "list the limit: its tiers are added by themselves",
                );
                continue;
            }
            let Some(incumbent) = &limit.candidate_of else {
                all.push(limit.clone());
                all.extend(self.0.get(&limit.name).into_iter().flatten().cloned());
                continue;
            };
            if listed.iter().all(|other| other.name != *incumbent) {
                let place = find_place(section, names, &limit.name);
                let what = format!("`{}` is a candidate of `{incumbent}`, which is not listed here", limit.name);
                let help = "list the incumbent: its candidates are added by themselves";
                ok = section.report_fault_at(route::LIMITS.name, place, &what, help);
            }
        }
        ok.map(|()| all)
    }
}

/// Returns where a list names a limit, or the place of the section.
fn find_place(section: &Section, names: &[At<String>], limit: &str) -> Place {
    names.iter().find(|at| at.value == limit).map_or(section.place, |at| at.place)
}
