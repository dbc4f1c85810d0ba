//! Warns about limits whose costs do not work as they seem to: late charges that bound nothing, and estimates that never
//! fit. Called by `lint`.

use std::sync::Arc;

use crate::config::compile::names::Definitions;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::source::SourceTexts;
use crate::limiting::key::KeyPart;
use crate::limiting::limit::{Limit, Mode};
use crate::limiting::settlement::reserve::Reserve;
use crate::limiting::source::Source;
use crate::route::Route;

/// Warns about the costs of all limits.
pub fn warn_of_costs<'r>(
    sources: &SourceTexts,
    limits: &Definitions<Arc<Limit>>,
    routes: impl Iterator<Item = (&'r Route, Place)>,
) {
    let definitions = limits.places().filter_map(|(name, place)| Some((limits.get(name)?, place)));
    // Routes whose price of a limit is not that of the limit.
    let priced = routes.flat_map(|(route, place)| route.limits.iter().map(move |limit| (limit.clone(), place)));
    let priced = priced.filter(|(limit, _)| limits.get(&limit.name).is_some_and(|own| own.cost != limit.cost));
    for (limit, place) in definitions.chain(priced).filter(|(limit, _)| !limit.is_wider_tier()) {
        let name = &limit.name;
        if limit.charges_late() && limit.mode == Mode::Enforce && limit.rule.late_debt() == Some(0) {
            let what =
                format!("`{name}` does not bound what responses cost beyond the estimate: it forgets what it lacks");
            let help = "write algorithm = \"token_bucket\" with a `debt` of the most that a response costs, or use a window \
                        (fixed_window, calendar, sliding_window, sliding_log)";
            let warning = Diagnostic::new(place, what).with_help(help);
            sources.add_warning(DiagnosticCode::ForgottenCosts, warning);
        }
        let clears = limit.charge_rules.as_ref().is_some_and(|rules| rules.clear_on.is_some());
        let is_by_address = limit.key.0.iter().all(|part| matches!(part, KeyPart::Source(Source::Ip(_))));
        if clears && is_by_address && limit.mode == Mode::Enforce {
            let what = format!(
                "`{name}` clears by address: a client that succeeds now and then, with an account of its own, never \
                 reaches the limit"
            );
            let help = "add to the key what a success proves, like key = \"form:user\", or remove `clear_on`";
            sources.add_warning(DiagnosticCode::ClearsByAddress, Diagnostic::new(place, what).with_help(help));
        }
        let least = limit.cost.reserve().map_or(0, Reserve::least_units_unannounced);
        if least > limit.rule.max_cost() {
            let what = format!(
                "`{name}` refuses every request that announces no output: its estimate is at least {least}, and the limit \
                 never has more than {}",
                limit.rule.max_cost()
            );
            let help = "lower `default_add` (and `base`), or raise the limit";
            sources.add_warning(DiagnosticCode::EstimateNeverFits, Diagnostic::new(place, what).with_help(help));
        }
    }
}
