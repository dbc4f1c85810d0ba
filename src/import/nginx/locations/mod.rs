//! Translates the locations of a server to routes.
//!
//! Input: a `location` with the directives in effect there. Output: its routes, the last of which is for all requests
//! that no other one takes. To translate another directive of a location, read it in `Context::translate_body`.
//!
//! - `responses`: `return`.
//! - `rewrites`: `rewrite` of a location.

mod responses;
mod rewrites;

use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::nginx::access::{denies_all, restrict_access};
use crate::import::nginx::compression::translate_gzip;
use crate::import::nginx::conditions::guards::{Guard, read_limit_except, read_refusal};
use crate::import::nginx::conditions::variants::{Variant, split_location};
use crate::import::nginx::files::{DIFFERENCES, FileLocation};
use crate::import::nginx::headers::{
    GatewayFacts, translate_added_headers, translate_hidden_headers, translate_request_headers,
};
use crate::import::nginx::limits::Zones;
use crate::import::nginx::limits::keys::Variables;
use crate::import::nginx::locations::responses::respond;
use crate::import::nginx::locations::rewrites::{LocationRedirect, LocationRewrite, read_location_rewrite};
use crate::import::nginx::nesting::{LocationBlock, is_named, read_matcher};
use crate::import::nginx::pages::{has_page_at, note_lost_pages, translate_error_pages};
use crate::import::nginx::passwords::{PasswordGuard, read_password_guard, require_passwords};
use crate::import::nginx::redirects::is_response;
use crate::import::nginx::review::review_block;
use crate::import::nginx::scope::{Scope, is_rewriting};
use crate::import::nginx::sizes::translate_size;
use crate::import::nginx::upstreams::passes::{RedirectPairs, find_redirects, translate_pass};
use crate::import::nginx::upstreams::{UpstreamBlocks, translate_time};
use crate::import::paths::{Location, LocationMatcher};
use crate::import::syntax::{Directive, shorten};
use crate::import::text::{format_duration, format_pairs};

/// State that all locations of a server share.
pub struct Context<'a, 'o> {
    pub out: &'o mut ImportedConfig,
    pub zones: &'o mut Zones,
    pub upstreams: &'o UpstreamBlocks<'a>,
    pub facts: &'o GatewayFacts,
    /// The variables of `map` and `geo`.
    pub variables: &'o Variables<'a>,
    /// Conditions of the server so far that refuse requests.
    pub guards: Vec<Guard>,
    /// The index of the server, which names it in limits per server.
    pub server: usize,
    /// The first name of the server.
    pub server_name: Option<&'o str>,
    /// The remark about what protects all locations of the server.
    pub closed: Option<usize>,
    /// The directives of the server, and those in effect there.
    pub site: &'a [Directive],
    pub outer: &'o Scope<'a>,
    /// The `compress` of the gateway.
    pub compress: Option<&'o str>,
    /// The comment on a regular expression inside another location. It may match requests that the server's regular
    /// expressions would get.
    pub inner_regex: Option<usize>,
    /// How the location around maps `Location` headers, which the locations inside of it inherit.
    pub redirects: Option<RedirectPairs>,
}

impl<'a> Context<'a, '_> {
    /// Translates a `location` of a block and the locations inside it, and adds them to `found`.
    pub fn translate_location(
        &mut self,
        at: &'a Directive,
        block: &LocationBlock,
        outer: &Scope<'a>,
        found: &mut Vec<Location>,
    ) -> Result<()> {
        if is_named(at) {
            self.out.remarks.add(at, "named locations are not available");
            return Ok(());
        }
        let mut matcher = read_matcher(at)?;
        if block.hides(&matcher) {
            return Ok(());
        }
        block.inherit_first(&mut matcher);
        let scope = outer.enter_block(at.inner());
        let mut variants = self.translate_variants(at, outer, &matcher)?;
        let Some(Location { mut body, .. }) = variants.pop() else { return Ok(()) };
        body.redirects_to_slash = block.redirects_to(&matcher);
        let (first, mut overriding) = (found.len(), None);
        let within = LocationBlock::read(at.inner(), Some((block, &matcher)))?;
        // The comments on what is left out are those of the location itself.
        let redirects = find_redirects(at.inner(), &matcher, &scope, self.redirects.as_ref(), |_| ());
        let outer_redirects = std::mem::replace(&mut self.redirects, redirects);
        for inner in at.inner().iter().filter(|inner| inner.name == "location") {
            if matches!(matcher, LocationMatcher::Regex { .. }) {
                let why = "a location inside a regular expression is not available";
                let number = self.out.remarks.add(inner, why);
                body.close(number);
                variants.iter_mut().for_each(|variant| variant.body.close(number));
                continue;
            }
            if inner.arg(0).starts_with('~') {
                let why = "a regular expression inside another location is not available";
                overriding = Some(self.out.remarks.add(inner, why));
                continue;
            }
            self.translate_location(inner, &within, &scope, found)?;
        }
        self.redirects = outer_redirects;
        // The regular expression may take requests of all these routes, and before those of the server.
        if let Some(number) = overriding {
            body.close(number);
            variants.iter_mut().for_each(|variant| variant.body.close(number));
            found[first..].iter_mut().for_each(|location| location.body.close(number));
            if !matches!(matcher, LocationMatcher::Prefix { first: true, .. }) {
                self.inner_regex.get_or_insert(number);
            }
        }
        // A location inside with the same path takes all requests, but not those without its slash.
        let is_same =
            |inner: &&mut Location| !inner.matcher.is_exact() && inner.matcher.literal_path() == matcher.literal_path();
        match found[first..].iter_mut().find(is_same) {
            Some(inner) => inner.body.redirects_to_slash |= body.redirects_to_slash,
            None => {
                found.append(&mut variants);
                found.push(Location { matcher, body });
            }
        }
        Ok(())
    }

    /// Translates a location to its routes. The last one is for all requests that no other one takes.
    fn translate_variants(
        &mut self,
        at: &'a Directive,
        outer: &Scope<'a>,
        matcher: &LocationMatcher,
    ) -> Result<Vec<Location>> {
        let mut routes: Vec<Location> = Vec::new();
        for Variant { condition, block, inner } in split_location(at.inner(), self.variables) {
            let mut body = match &inner {
                Some(inner) => {
                    let scope = outer.enter_block(at.inner()).enter_block(inner.inner());
                    self.translate_body(at, &block, &scope, matcher)?
                }
                None => self.translate_body(at, &block, &outer.enter_block(&block), matcher)?,
            };
            body.condition = condition;
            if !self.out.reserve_route(&body) {
                return Err(at.error("the config would be larger than 16 MiB; import fewer files at once"));
            }
            routes.push(Location { matcher: matcher.clone(), body });
        }
        // They have the paths of the location, whatever answers there.
        let has_pass = routes.last().is_some_and(|route| route.body.has_pass);
        routes.iter_mut().for_each(|route| route.body.has_pass = has_pass);
        Ok(routes)
    }

    /// Translates the directives of a location, or a server's `return`, to a route.
    pub fn translate_body(
        &mut self,
        at: &Directive,
        block: &[Directive],
        scope: &Scope,
        matcher: &LocationMatcher,
    ) -> Result<RouteBody> {
        let origin = match at.name.as_str() {
            "location" => shorten(&format!("{}:{}: location {}", at.file, at.line, at.args.join(" "))),
            _ => shorten(&format!("{}:{}: {}", at.file, at.line, at.name)),
        };
        let mut body = RouteBody::with_status(origin, 404);
        if at.name == "location" {
            for number in review_block(block, "L", self.out) {
                body.add_remark(number);
            }
        }
        translate_added_headers(scope, self.out, &mut body);
        self.apply_server_guards(scope, &mut body);
        let own_header = block.iter().find(|directive| directive.name == "add_header" && !body.guards.is_empty());
        if let Some(directive) = own_header {
            let why = "a refusal by an `if` of the server has these headers, too; in nginx, it has those of the server";
            body.add_remark(self.out.remarks.add(directive, why));
        }
        if let Some(directive) = block.iter().find(|directive| directive.name == "internal") {
            self.review_internal(directive, matcher, scope, &mut body);
            return Ok(body);
        }
        body.has_pass = block.iter().any(|directive| directive.name.ends_with("_pass"));
        for number in self.closed.into_iter().chain(scope.find_closing(self.out)) {
            body.close(number);
        }
        let response = block.iter().find(|directive| is_response(directive));
        let Some(forward) = self.translate_steps(block, response, matcher, scope, &mut body) else { return Ok(body) };
        let passwords = self.check_passwords(scope, &mut body);
        let exception = block.iter().find(|directive| directive.name == "limit_except");
        if let Some(directive) = exception {
            self.translate_limit_except(directive, block, scope, &mut body);
        }
        if let Some(directive) = response {
            // nginx responds before it checks limits, passwords, `allow` and `deny`.
            respond(directive, matcher, scope, self.out, &mut body);
            return Ok(body);
        }
        if denies_all(scope)? {
            // Limits count these requests, as in nginx.
            body.action = RouteAction::Respond { status: 403, body: None, content_type: None, location: None };
            self.zones.apply_limits(scope, self.server, self.out, &mut body)?;
            note_lost_pages(scope, 403, self.out, &mut body);
            return Ok(body);
        }
        let mut rewrite: Vec<String> = Vec::new();
        let pass = block.iter().find(|directive| matches!(directive.name.as_str(), "proxy_pass" | "grpc_pass"));
        if let Some(directive) = pass {
            rewrite = self.translate_forwarding((directive, block), matcher, scope, forward, &mut body);
        } else if body.closed.is_none() {
            let location = FileLocation { at, block, matcher, scope, site: self.site, outer: self.outer };
            self.translate_files(&location, &forward, &mut body);
        }
        body.add_rewrite(&rewrite);
        body.has_access_rules = !scope.list("allow").is_empty();
        self.zones.apply_limits(scope, self.server, self.out, &mut body)?;
        restrict_access(scope, self.out, &mut body)?;
        self.check_client(scope, &mut body);
        require_passwords(&passwords, scope, self.out, &mut body);
        if body.closed.is_none() && matches!(body.action, RouteAction::Respond { .. }) {
            // All servers of its `upstream` are down.
            note_lost_pages(scope, 502, self.out, &mut body);
            return Ok(body);
        }
        self.translate_settings(scope, &mut body)?;
        translate_error_pages(scope, self.site, self.outer, self.out, &mut body);
        Ok(body)
    }

    /// Translates the `if` and `rewrite` of a location. Returns the options of `rewrite`, or `None` if the route only
    /// redirects.
    fn translate_steps(
        &mut self,
        block: &[Directive],
        response: Option<&Directive>,
        matcher: &LocationMatcher,
        scope: &Scope,
        body: &mut RouteBody,
    ) -> Option<Vec<String>> {
        // Nothing after a response has an effect.
        let is_before = |directive: &&Directive| response.is_none_or(|response| !std::ptr::eq(response, *directive));
        let steps: Vec<&Directive> = block.iter().take_while(is_before).filter(|at| is_rewriting(at)).collect();
        let guards: Vec<Guard> = steps.iter().map_while(|directive| read_refusal(directive, self.variables)).collect();
        guards.iter().for_each(|guard| self.apply_guard(guard, scope, body));
        let mut forward = Vec::new();
        let rest = &steps[guards.len()..];
        let is_only = rest.len() == 1 && response.is_none();
        for directive in rest {
            match read_location_rewrite(directive, block, matcher).filter(|_| is_only) {
                Some(LocationRewrite::Redirect(LocationRedirect { redirect, option, pattern, differs })) => {
                    if let Some(why) = differs {
                        body.add_remark(self.out.remarks.add(directive, why));
                    }
                    body.lines.extend(option.map(|option| format!("rewrite = {{ {option} }}")));
                    body.pattern = pattern;
                    body.action = RouteAction::Redirect(redirect);
                    return None;
                }
                Some(LocationRewrite::Forward(options, differs)) => {
                    forward = options;
                    if let Some(why) = differs {
                        body.add_remark(self.out.remarks.add(directive, why));
                    }
                }
                None => {
                    let why = "not available, so the routes that it changes are closed";
                    body.close(self.out.remarks.add(directive, why));
                }
            }
        }
        Some(forward)
    }

    /// Adds the conditions of the server that refuse requests. They come before those of a location.
    pub fn apply_server_guards(&mut self, scope: &Scope, body: &mut RouteBody) {
        for guard in self.guards.clone() {
            self.apply_guard(&guard, scope, body);
        }
        body.server_guards.clone_from(&body.guards);
    }

    /// Adds a condition that refuses requests. Closes the route if the gateway would not know the client that it reads.
    fn apply_guard(&mut self, guard: &Guard, scope: &Scope, body: &mut RouteBody) {
        guard.apply(scope, self.out, body);
        if let Some(number) = self.facts.unread_client.filter(|_| guard.reads_client()) {
            body.close(number);
        }
    }

    /// Translates `limit_except`, or closes the route.
    fn translate_limit_except(&mut self, at: &Directive, block: &[Directive], scope: &Scope, body: &mut RouteBody) {
        match read_limit_except(at, block, scope, self.variables) {
            Some(guard) => {
                self.apply_guard(&guard, scope, body);
                if !scope.list("limit_req").is_empty() || !scope.list("limit_conn").is_empty() {
                    let why = "limits do not count the requests that it refuses, unlike in nginx";
                    body.add_remark(self.out.remarks.add(at, why));
                }
            }
            None => {
                let why = "only `allow` and `deny` are available here, and only in a location without others and without \
                           `if`, `return` and `rewrite`, so its routes are closed";
                body.close(self.out.remarks.add(at, why));
            }
        }
    }

    /// Translates `proxy_pass` with its headers. Returns the parts of `rewrite`. `forward`: those of a `rewrite` of nginx.
    fn translate_forwarding(
        &mut self,
        (at, block): (&Directive, &[Directive]),
        matcher: &LocationMatcher,
        scope: &Scope,
        forward: Vec<String>,
        body: &mut RouteBody,
    ) -> Vec<String> {
        let mut rewrite = Vec::new();
        if let Some((target, path)) = translate_pass(at, matcher, self.upstreams, scope, self.out, body) {
            if !target.is_grpc {
                self.translate_redirects(block, matcher, scope, body);
            }
            rewrite.extend(path);
            rewrite.extend(forward);
            let (facts, name) = (self.facts, self.server_name);
            rewrite.extend(translate_request_headers(scope, &target, facts, name, self.out, body));
            translate_hidden_headers(scope, target.is_grpc, &mut body.response);
        }
        rewrite
    }

    /// Translates how nginx maps `Location` headers of the server, which it does by default.
    fn translate_redirects(
        &mut self,
        block: &[Directive],
        matcher: &LocationMatcher,
        scope: &Scope,
        body: &mut RouteBody,
    ) {
        let (inherited, out) = (self.redirects.as_ref(), &mut *self.out);
        let pairs = find_redirects(block, matcher, scope, inherited, |at| {
            body.add_remark(out.remarks.add(at, "left out: only texts without variables are available"));
        });
        if let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) {
            body.lines.push(format!("rewrite_location = {}", format_pairs(&pairs)));
        }
    }

    /// Translates a location that serves files. `forward`: the options of a `rewrite` of nginx.
    fn translate_files(&mut self, location: &FileLocation, forward: &[String], body: &mut RouteBody) {
        let served = match location.translate(self.out) {
            Ok(served) if served.rewrite.is_some() && !forward.is_empty() => {
                Err("`alias` with a `rewrite` is not available".to_owned())
            }
            other => other,
        };
        match served {
            Ok(served) => {
                body.add_remark(self.out.remarks.add_text(DIFFERENCES.to_owned()));
                let rewrite: Vec<String> = served.rewrite.into_iter().chain(forward.iter().cloned()).collect();
                if !rewrite.is_empty() {
                    body.lines.push(format!("rewrite = {{ {} }}", rewrite.join(", ")));
                }
                body.lines.extend(served.lines);
                // nginx sends no `Cache-Control` of its own.
                body.response.remove.push("cache-control".to_owned());
                body.action = RouteAction::Files(served.folder);
            }
            Err(why) => {
                let number = self.out.remarks.add(location.at, &format!("nginx serves files here: {why}"));
                body.close(number);
            }
        }
    }

    /// Closes a route that depends on addresses of clients which the gateway would not know.
    fn check_client(&mut self, scope: &Scope, body: &mut RouteBody) {
        let lists = ["allow", "limit_req", "limit_conn"];
        if let Some(number) = self.facts.unread_client
            && lists.iter().any(|list| !scope.list(list).is_empty())
        {
            body.close(number);
        }
    }

    /// Returns the passwords that a route needs. Closes the route if they are not available.
    fn check_passwords<'s>(&mut self, scope: &Scope<'s>, body: &mut RouteBody) -> PasswordGuard<'s> {
        let passwords = read_password_guard(scope, self.out);
        if let PasswordGuard::Unavailable { at, why } = &passwords {
            let number = self.out.remarks.add(at, why);
            body.close(number);
        }
        passwords
    }

    /// Adds comments on an internal location, unless it only has the page of an error.
    fn review_internal(&mut self, at: &Directive, matcher: &LocationMatcher, scope: &Scope, body: &mut RouteBody) {
        if has_page_at(matcher, self.site, self.outer) {
            return;
        }
        let why = "clients get 404, as in nginx, but `X-Accel-Redirect` of a server does not lead here";
        body.add_remark(self.out.remarks.add(at, why));
        note_lost_pages(scope, 404, self.out, body);
    }

    fn translate_settings(&mut self, scope: &Scope, body: &mut RouteBody) -> Result<()> {
        if let Some(directive) = scope.get("client_max_body_size") {
            Zones::comment_on_body_size(directive, scope, self.out, body);
            body.lines.push(format!("max_body = {}", translate_size(directive)?));
        }
        let compress = translate_gzip(scope, self.out)?;
        if compress.as_deref() != self.compress {
            body.lines.push(compress.unwrap_or_else(|| "compress = false".to_owned()));
        }
        if matches!(body.action, RouteAction::Files(_)) {
            return Ok(());
        }
        let times = [
            ("proxy_connect_timeout", ["connect_timeout", "", ""]),
            ("grpc_connect_timeout", ["connect_timeout", "", ""]),
            ("proxy_read_timeout", ["response_timeout", "stream_timeout", "tunnel_timeout"]),
            ("grpc_read_timeout", ["response_timeout", "stream_timeout", ""]),
            ("client_body_timeout", ["body_timeout", "", ""]),
        ];
        let mut names: Vec<&str> = Vec::new();
        for (theirs, ours) in times {
            let Some(directive) = scope.get(theirs) else { continue };
            let time = translate_time(directive, |why| body.add_remark(self.out.remarks.add(directive, why)));
            let Some(ms) = time else { continue };
            for name in ours.into_iter().filter(|name| !name.is_empty()) {
                if !names.contains(&name) {
                    names.push(name);
                    body.lines.push(format!("{name} = {}", format_duration(ms)));
                }
            }
        }
        Ok(())
    }
}
