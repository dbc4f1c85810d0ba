//! Warns about configs that load and work, but probably protect less than they seem to. Called by `compile` after
//! everything else succeeded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::config::compile::names::Definitions;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::pattern_look::PatternLook;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::Section;
use crate::config::schema::{admin, listener};
use crate::config::source::SourceTexts;
use crate::config::tree::{Table, TableEntry, Value};
use crate::config::{Admin, ListenerSettings, ServerSettings, Service};
use crate::limiting::algorithm::Rule;
use crate::limiting::key::KeyPart;
use crate::limiting::limit::when::{Condition, Pattern, Test};
use crate::limiting::limit::{Limit, Mode, OnError};
use crate::limiting::settlement::reserve::Reserve;
use crate::limiting::source::{Source, SourceKind};
use crate::net::ListenAddr;
use crate::received_headers::{Visibility, find_visibility};
use crate::route::matcher::{HeaderPattern, PathPattern, Segment};
use crate::route::{Action, Route};

/// The parts of a config that the lints read.
struct LintContext<'a> {
    sources: &'a SourceTexts,
    documents: &'a [Table],
    server: &'a ServerSettings,
    admin: &'a Admin,
    routes: &'a [Route],
    /// The routes of `[decide.NAME]`.
    decide: &'a [Route],
    limits: &'a Definitions<Arc<Limit>>,
}

/// Headers that proxies set. A client can send them too.
const PROXY_HEADERS: [&str; 10] = [
    "x-forwarded-for",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "forwarded",
];

/// Segments of paths at which clients prove their identity.
const LOGIN_SEGMENTS: [&str; 12] = [
    "login",
    "signin",
    "sign-in",
    "sign_in",
    "logon",
    "password",
    "passwords",
    "reset-password",
    "2fa",
    "otp",
    "mfa",
    "wp-login.php",
];

/// Methods that change something.
const WRITES: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// Warns about `documents`, whose sections of routes are in the order of the compiled routes.
pub fn warn_of_gaps(
    sources: &SourceTexts,
    (documents, route_sections): (&[Table], &[Section]),
    (server, admin): (&ServerSettings, &Admin),
    (routes, decide): (&[Route], &[Route]),
    limits: &Definitions<Arc<Limit>>,
) {
    let context = &LintContext { sources, documents, server, admin, routes, decide, limits };
    warn_of_forgeable_keys(context);
    warn_of_forgeable_numbers(context);
    warn_of_removed_headers(context);
    warn_of_wildcard_names(context);
    warn_of_idle_limits(context);
    warn_of_open_admin(context);
    let sections = route_sections.iter().map(|section| section.place);
    warn_of_costs(sources, limits, routes.iter().zip(sections));
    for (route, section) in routes.iter().zip(route_sections) {
        warn_of_wildcard_value(context, route, section.place);
        warn_of_open_login(context, route, section.place);
        warn_of_unlimited_methods(context, route, section.place);
        let names = route.matcher.headers.iter().map(|(name, _)| name.as_str());
        warn_of_removed_header(context, section.place, &format!("route `{}`", route.name), names);
    }
}

fn warn_of_forgeable_keys(context: &LintContext) {
    if !context.server.client_address.trusted.is_empty() {
        return;
    }
    for (name, place) in context.limits.places() {
        let Some(limit) = context.limits.get(name).filter(|limit| !limit.is_wider_tier()) else { continue };
        let Some(header) = limit.key.sources().find_map(find_proxy_header) else { continue };
        // The heads that other proxies describe keep their headers.
        let is_cleaned = context.routes.iter().any(|route| route.limits.iter().any(|limit| *limit.name == *name));
        let what = match find_visibility(header) {
            Visibility::FromTrustedPeers | Visibility::Never if is_cleaned => {
                format!("`{name}` does not see the header `{header}`: the gateway removes it before limits read it")
            }
            _ => format!("every client can choose its budget of `{name}`: anybody may send the header `{header}`"),
        };
        let help = "write key = \"ip\", and list the proxies in front of the gateway in `trusted_proxies` of [server]";
        let warning = Diagnostic::new(place, what).with_help(help);
        context.sources.add_warning(DiagnosticCode::ForgeableKey, warning);
    }
}

/// Warns of limits whose rate, or day, is in a header that clients can send on a route of the limit.
fn warn_of_forgeable_numbers(context: &LintContext) {
    for (name, place) in context.limits.places() {
        let Some(limit) = context.limits.get(name) else { continue };
        for source in limit.stated_sources() {
            let Source::Header(header) = source else { continue };
            let is_owned = |route: &Route| {
                let auth = route.auth.as_ref();
                auth.is_some_and(|auth| auth.identity_headers().any(|owned| owned == header))
            };
            let has_limit = |route: &&Route| route.limits.iter().any(|other| other.name == limit.name);
            let Some(route) = context.routes.iter().filter(has_limit).find(|route| !is_owned(route)) else { continue };
            let what = format!(
                "`{name}` reads the numbers of a key from the header `{header}`, which every client of the route `{}` can send",
                route.name
            );
            let help = "use a claim of a token, or list the header in `copy_headers` of the `auth` of the route";
            let warning = Diagnostic::new(place, what).with_help(help);
            context.sources.add_warning(DiagnosticCode::ForgeableKey, warning);
        }
    }
}

/// Warns of limits that read a header about the client, which is removed from all requests without `trusted_proxies`.
fn warn_of_removed_headers(context: &LintContext) {
    for (name, place) in context.limits.places() {
        let Some(limit) = context.limits.get(name).filter(|limit| !limit.is_wider_tier()) else { continue };
        // Such keys have a warning of their own.
        let others = limit.sources().filter(|source| !limit.key.sources().any(|part| part == *source));
        let others = others.chain(limit.key.sources().filter(|part| find_proxy_header(part).is_none()));
        let names = others.filter_map(|source| match source {
            Source::Header(name) | Source::Credential(name) => Some(name.as_str()),
            _ => None,
        });
        warn_of_removed_header(context, place, &format!("`{name}`"), names);
    }
}

fn warn_of_removed_header<'n>(
    context: &LintContext,
    place: Place,
    reader: &str,
    mut names: impl Iterator<Item = &'n str>,
) {
    if !context.server.client_address.trusted.is_empty() {
        return;
    }
    let Some(header) = names.find(|name| find_visibility(name) == Visibility::FromTrustedPeers) else { return };
    let what = format!(
        "{reader} reads the header `{header}`, which the gateway removes: it is accepted from trusted proxies only, and \
         there are none"
    );
    let help = "list the proxies in front of the gateway in `trusted_proxies` of [server]";
    context.sources.add_warning(DiagnosticCode::RemovedHeader, Diagnostic::new(place, what).with_help(help));
}

/// Warns of sources like `query:*`, which somebody could take for all parameters.
fn warn_of_wildcard_names(context: &LintContext) {
    for (name, place) in context.limits.places() {
        let Some(limit) = context.limits.get(name).filter(|limit| !limit.is_wider_tier()) else { continue };
        let mut names = limit.sources().map(Source::display_name);
        let Some(source) = names.find(|source| source.contains('*')) else { continue };
        let what =
            format!("`{source}` of `{name}` has no wildcard: it reads only what is called exactly that, with the `*`");
        let help = "write the whole name; one limit for each name if you mean several";
        context.sources.add_warning(DiagnosticCode::WildcardName, Diagnostic::new(place, what).with_help(help));
    }
}

/// Warns of a condition like `header = { x-plan = "*" }` of a route, which somebody could take for all values: those of
/// `when` are patterns.
fn warn_of_wildcard_value(context: &LintContext, route: &Route, place: Place) {
    // `*/*` is a plain value of `Accept`.
    let find_look = |value: &[u8]| match value {
        b"*/*" => None,
        b"*" => Some(PatternLook::Wildcard),
        value => str::from_utf8(value).ok().and_then(PatternLook::of),
    };
    let pattern = route.matcher.headers.iter().find_map(|(name, pattern)| match pattern {
        HeaderPattern::Text(value) => Some((name, value, find_look(value.as_bytes())?)),
        HeaderPattern::Regex(_) => None,
    });
    let Some((name, value, look)) = pattern else { return };
    let value = String::from_utf8_lossy(value.as_bytes());
    let what = match look {
        PatternLook::Wildcard => format!(
            "route `{}` has no wildcard: it matches only requests whose `{name}` is exactly `{value}`, with the `*`",
            route.name
        ),
        look => format!(
            "route `{}` matches only requests whose `{name}` is exactly `{value}`, which looks like {}",
            route.name,
            look.noun()
        ),
    };
    let help = "write the whole value, or a regular expression: \"~ ^text\"";
    context.sources.add_warning(DiagnosticCode::WildcardName, Diagnostic::new(place, what).with_help(help));
}

fn find_proxy_header(source: &Source) -> Option<&str> {
    match source {
        Source::Header(name) => Some(name.as_str()).filter(|name| PROXY_HEADERS.contains(name)),
        _ => None,
    }
}

/// Warns of limits that another limit of all their routes makes superfluous.
fn warn_of_idle_limits(context: &LintContext) {
    // The limits that are on all routes of a limit.
    let mut companions: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for route in context.routes.iter().chain(context.decide) {
        let names: BTreeSet<&str> = route.limits.iter().map(|limit| limit.name.as_str()).collect();
        for limit in &route.limits {
            let common = companions.entry(&limit.name).or_insert_with(|| names.clone());
            common.retain(|name| names.contains(name));
        }
    }
    let of_routes = context.routes.iter().chain(context.decide).flat_map(|route| &route.limits);
    let is_priced = |limit: &&Arc<Limit>| context.limits.get(&limit.name).is_some_and(|own| own.cost != limit.cost);
    let priced: BTreeSet<&str> = of_routes.filter(is_priced).map(|limit| limit.name.as_str()).collect();
    for (name, place) in context.limits.places().filter(|(name, _)| !priced.contains(name)) {
        let (Some(limit), Some(names)) = (context.limits.get(name), companions.get(name)) else { continue };
        let others = names.iter().filter(|other| **other != name && !priced.contains(*other));
        let others = others.filter_map(|other| context.limits.get(other));
        // Of two equal limits, one is enough: the one with the smaller name.
        let tighter = others.into_iter().find(|other| {
            is_never_first(&limit, other) && (!is_never_first(other, &limit) || *other.name < *limit.name)
        });
        let Some(tighter) = tighter else { continue };
        let what = format!("`{name}` never refuses a request: `{}` is tighter in all respects", tighter.name);
        let help = format!("remove `{name}`, or correct its rate, burst or key");
        let warning = Diagnostic::new(place, what).with_label("never decides").with_help(help);
        context.sources.add_warning(DiagnosticCode::IdleLimit, warning);
    }
}

/// Returns whether `tight` refuses everything that `wide` would, if both are charged for the same requests.
fn is_never_first(wide: &Limit, tight: &Limit) -> bool {
    let is_plain = |limit: &Limit| {
        limit.mode == Mode::Enforce
            && !limit.forwards_excess()
            && limit.after.is_none()
            && limit.charge_rules.is_none()
            && !limit.overrides.has_any()
            && limit.key_rate.is_none()
    };
    let same_requests = wide.key == tight.key
        && wide.when == tight.when
        && wide.cost == tight.cost
        && wide.missing == tight.missing
        && wide.repeated == tight.repeated
        && wide.on_error == tight.on_error;
    if !(is_plain(wide) && is_plain(tight) && same_requests) {
        return false;
    }
    match (&*wide.rule, &*tight.rule) {
        (Rule::TokenBucket(wide), Rule::TokenBucket(tight)) => {
            let speed = |count: i64, per_ms: i64| i128::from(count) * i128::from(per_ms);
            wide.burst >= tight.burst
                && wide.debt >= tight.debt
                && speed(wide.rate, tight.per_ms) >= speed(tight.rate, wide.per_ms)
                && (wide.interval, wide.empty) == (tight.interval, tight.empty)
        }
        (Rule::Concurrency(_), Rule::Concurrency(_)) => wide.rule.max_cost() >= tight.rule.max_cost(),
        (Rule::FixedWindow(_), Rule::FixedWindow(_))
        | (Rule::SlidingWindow(_), Rule::SlidingWindow(_))
        | (Rule::SlidingLog(_), Rule::SlidingLog(_)) => {
            let (wide, tight) = (wide.rule.policy(), tight.rule.policy());
            wide.quota >= tight.quota && wide.window_ms <= tight.window_ms
        }
        _ => false,
    }
}

fn warn_of_open_admin(context: &LintContext) {
    let is_remote = match &context.admin.listen {
        ListenAddr::Tcp(address) => !address.ip().is_loopback(),
        ListenAddr::Unix(_) => false,
    };
    if let (true, true, Some(place)) =
        (is_remote, context.admin.tokens.is_empty(), find_admin_address(context.documents))
    {
        let what =
            "other machines can reach the admin listener, and no token is set: they see the config and the metrics";
        let help = "set `token` in [admin], or listen on 127.0.0.1 or a Unix socket";
        context.sources.add_warning(DiagnosticCode::OpenAdmin, Diagnostic::new(place, what).with_help(help));
    }
}

/// Warns if a listener requires client certificates, and another one serves the same routes without.
pub fn warn_of_open_listeners(sources: &SourceTexts, sections: &[Section], listeners: &[Arc<ListenerSettings>]) {
    let requires = |section: &&Section| {
        let Some(Value::Table(tls)) = section.node(&listener::TLS).map(|node| &node.value) else { return false };
        let is_optional =
            |entry: &TableEntry| matches!(&entry.node.value, Value::String(text) if text.value == "optional");
        tls.get(listener::tls::CLIENT_CA.name).is_some()
            && !tls.get(listener::tls::CLIENT_AUTH.name).is_some_and(is_optional)
    };
    let serves = |listener: &&Arc<ListenerSettings>| {
        matches!(listener.service, Service::Http) && listener.redirect_port.is_none()
    };
    let guarding: Vec<&Section> = sections.iter().filter(requires).collect();
    let Some(first) = guarding.first().filter(|_| listeners.iter().filter(serves).count() > guarding.len()) else {
        return;
    };
    let what = "this listener requires client certificates, but another listener serves the same routes without";
    let help = "routes apply to all listeners: remove the other one, or run a gateway of its own for it";
    sources.add_warning(
        DiagnosticCode::OpenBesideCertificates,
        Diagnostic::new(first.place, what.to_owned()).with_help(help),
    );
}

/// Returns where `listen` of `[admin]` is written.
fn find_admin_address(documents: &[Table]) -> Option<Place> {
    documents.iter().find_map(|document| match &document.get(admin::TABLE.name)?.node.value {
        Value::Table(admin) => admin.get(admin::LISTEN.name).map(|entry| entry.node.place),
        _ => None,
    })
}

fn warn_of_open_login(context: &LintContext, route: &Route, place: Place) {
    let is_login = match &route.matcher.path {
        PathPattern::Segments { segments, .. } => segments.iter().any(|segment| match segment {
            Segment::Literal(text) => LOGIN_SEGMENTS.contains(&text.to_ascii_lowercase().as_str()),
            Segment::Param(_) => false,
        }),
        PathPattern::Regex(_) => false,
    };
    let Some(limit) = route.limits.iter().find(|limit| limit.on_error == OnError::Open).filter(|_| is_login) else {
        return;
    };
    let what = format!(
        "route `{}` looks like a login, and its limit `{}` admits every guess while the store is unavailable",
        route.name, limit.name
    );
    let help = format!("write on_error = \"local\" or \"closed\" in [limit.{}]", limit.name);
    context.sources.add_warning(DiagnosticCode::OpenLogin, Diagnostic::new(place, what).with_help(help));
}

/// Warns if all limits of a route are for some methods, and equivalent ones are left out: HEAD beside GET, or some of
/// several writing methods.
fn warn_of_unlimited_methods(context: &LintContext, route: &Route, place: Place) {
    if route.limits.is_empty() || matches!(route.action, Action::Redirect(_) | Action::Respond(_)) {
        return;
    }
    let method_lists: Option<Vec<Vec<&str>>> = route.limits.iter().map(|limit| methods_of(limit)).collect();
    let Some(limited_methods) = method_lists else { return };
    let limited_methods: BTreeSet<&str> = limited_methods.into_iter().flatten().collect();
    let is_readable = |method: &str| method == "HEAD" || !matches!(route.action, Action::Files(_));
    let is_accepted = |method: &str| {
        route.matcher.methods.is_empty() || route.matcher.methods.iter().any(|one| one.as_str() == method)
    };
    let writes = WRITES.iter().filter(|method| limited_methods.contains(**method)).count();
    let head = ["HEAD"].into_iter().filter(|_| limited_methods.contains("GET"));
    let rest = WRITES.into_iter().filter(|_| writes >= 2);
    let missing: Vec<&str> = head
        .chain(rest)
        .filter(|method| !limited_methods.contains(method) && is_accepted(method) && is_readable(method))
        .collect();
    if missing.is_empty() {
        return;
    }
    let what = format!("no limit of route `{}` applies to {}", route.name, missing.join(" and "));
    let help = "add the methods to `method` in `when` of a limit, or list those that the route accepts in `methods`";
    context.sources.add_warning(DiagnosticCode::UnlimitedMethods, Diagnostic::new(place, what).with_help(help));
}

/// Returns the methods that a limit is for, if its `when` lists them as words; `None` if it is for others as well.
fn methods_of(limit: &Limit) -> Option<Vec<&str>> {
    limit.when.0.iter().find_map(|condition| match condition {
        Condition::Text { source, test: Test::Any(patterns) } if source.kind() == SourceKind::Method => {
            let words = patterns.iter().map(|pattern| match pattern {
                Pattern::Text(word) => Some(word.as_str()),
                _ => None,
            });
            words.collect()
        }
        _ => None,
    })
}

/// Warns about the costs of all limits.
fn warn_of_costs<'r>(
    sources: &SourceTexts,
    limits: &Definitions<Arc<Limit>>,
    routes: impl Iterator<Item = (&'r Route, Place)>,
) {
    let definitions = limits.places().filter_map(|(name, place)| Some((limits.get(name)?, place)));
    // Routes with a different price of a limit than the limit itself.
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
