// Every text of every page of the API is hostile: none is executed, all are shown as text. Argument: URL.
const { VIEWS, assert, checkAccess, run, show } = require("./chromium.js");

const SCRIPTS = ["hack()", "hack(1)", "eval('hack()')", "window.hack()", "top.hack()"];
const PATTERNS = ["<script>@</script>", "<SCRIPT SRC=data:,@></SCRIPT>", "<img src=x onerror=@>", "<svg onload=@>", "<svg/onload=@>",
  "<body onload=@>", "<iframe srcdoc=\"<script>parent.@</script>\">", "<iframe src=javascript:parent.@>", "\"><script>@</script>",
  "'><script>@</script>", "\" onmouseover=@ autofocus onfocus=@ x=\"", "' autofocus onfocus=@ x='", "` onfocus=@ x=`", "</p><script>@</script>",
  "</title><script>@</script>", "</textarea><script>@</script>", "</style><script>@</script>", "--><script>@</script>",
  "]]><script>@</script>", "javascript:@", "data:text/html,<script>parent.@</script>", "{{constructor.constructor('@')()}}", "${@}",
  "\\\";@;//", "\\u003cscript\\u003e@\\u003c/script\\u003e", "&lt;script&gt;@&lt;/script&gt;", "%3Cscript%3E@%3C/script%3E",
  "<math><mtext><script>@</script>", "<template><script>@</script></template>", "<details open ontoggle=@>", "<video><source onerror=@>",
  "<object data=javascript:@>", "<embed src=javascript:@>", "<form><button formaction=javascript:@>", "<base href=javascript:@//>",
  "<meta http-equiv=refresh content=\"0;url=javascript:@\">", "<link rel=stylesheet href=data:text/css,x onload=@>", "\u202e@\u2066",
  "a\u0000\u001b[2J@\u200b", "__proto__ @", `${"x".repeat(5000)}@`];
const TEXTS = PATTERNS.flatMap((pattern) => SCRIPTS.map((script) => pattern.replace("@", script)));

const json = (value) => ({ contentType: "application/json", body: JSON.stringify(value) });
const stream = (events) => ({ contentType: "text/event-stream", body: events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("") });
const quoted = (text) => text.replace(/\\/g, "\\\\").replace(/"/g, "\\\"").replace(/\n/g, "\\n");

// What the pages of the API respond if `x` is in the place of each text.
function responses(x) {
  const limit = { limit: x, algorithm: x, policy: { quota: 5, window_ms: 1000 }, key: [x], missing: x, mode: x, cost: x, on_error: x, over: x, routes: [x] };
  const mistake = { file: x, line: 1, column: 2, message: x, help: x };
  const reload = { result: "failure", at: x, trigger: x, summary: x, diagnostics_count: 1, diagnostics: [mistake], warnings: [mistake], warnings_count: 1 };
  const server = { server: x, address: x, state: x, reason: x, returns_in_ms: 5, weight: 1, upstream: x };
  const live = { at_ms: Date.now(), version: x, host: x, lifecycle: "draining", uptime_seconds: 9, generation: 3, loaded_at: x, last_reload: reload,
    environment: x, environment_color: x, lost_log_lines: { total: 3, seconds_ago: 1 }, descriptors: { open: 99, max: 100 }, overrides: { live: 1, rejected: 1, bans_total: 2 },
    problems: TEXTS.map((text) => ({ level: text, kind: text, text, link: "javascript:hack()" })),
    store: { shared: true, up: false, breaker: 2, gateways: 2 }, seconds: 9,
    servers: { count: 3, unhealthy_count: 1, unhealthy: [server], fail_open_count: 1, fail_open: [`${x}.`] },
    certificates: { count: 1, expiring_count: 1, expiring: [{ listener: x, name: x, not_after: 5 }] },
    requests: { total: 9, failed_total: 8, refused_total: 7, in_flight: 1, per_second: 9, failed_per_second: 8, refused_per_second: 7, p50_ms: 1, p99_ms: 2 },
    limits: { count: 1, list: [{ limit: x, mode: x, refused_total: 1, asked_per_second: 3, refused_per_second: 2, would_refuse_per_second: 1, without_store_per_second: 0 }] } };
  return [
    ["/-/live", () => stream([live])],
    ["/-/tap", () => stream(TEXTS.map((text) => ({ time: text, status: 429, client: text, method: text, host: text, path: text, route: text,
      user_agent: text, decisions: [{ limit: text, decision: text, remaining: 0, retry_after_ms: 5, key: text }] })))],
    ["/-/top", () => json({ limits: [{ limit: x, total: 5, distinct: 2, distinct_is_exact: true, seconds: 9, error_max: 0 }],
      keys: TEXTS.map((text) => ({ limit: text, key: text, count_min: 1, count_max: 2, share: 0.5, remaining: 0, retry_after_ms: 5 })) })],
    ["/-/limits", () => json({ limits: TEXTS.map((text) => ({ ...limit, limit: text })) })],
    [/\/state$/, () => json({ limit: x, key: x, state_key: x, admitted: false, reason: x, remaining: 1, reset_ms: 4, policy: limit.policy, reset: true })],
    ["/-/limits/a", () => json({ ...limit, key: ["ip"] })],
    [/^\/-\/limits\//, () => json(limit)],
    ["/-/customers", () => json({ source: x, incomplete: [x], incomplete_total: 1, limits_left_out: 1, limits_hidden: 1, store_fault: null,
      limits: TEXTS.map((text) => ({ limit: "a", key: text, mode: x, outcome: x, refused_min: 1, refused_max: 2, override: { text, source: x, until: x, note: text, blocked: true }, admitted: false, reason: text, remaining: 1, reset_ms: 4, used: 4, policy: limit.policy, ban: { banned: true, left_ms: 5, bans: 1 } })),
      refusals: TEXTS.map((text) => ({ time: text, request_id: text, client: text, route: text, status: 429, limits: [{ limit: text, mode: text, reason: text, key: text, cost: 1, remaining: 0, retry_after_ms: 5, policy: limit.policy }] })) })],
    ["/-/gateways", () => json({ store_shared: true, store_fault: x, self: x, total: { gateways: 3, per_second: 1, failed_per_second: 1, refused_per_second: 1, in_flight: 1, p99_ms_max: 5 },
      keys: TEXTS.map((text) => ({ limit: text, key: text, count_min: 1, count_max: 2, gateways: 2 })),
      gateways: TEXTS.map((text) => ({ name: text, age_ms: 5, host: text, environment: text, environment_color: text, version: text, hash: text, lifecycle: text, admin: text, generation: 1, uptime_seconds: 5, in_flight: 1, servers: 2, servers_unhealthy: 0, per_second: 1, failed_per_second: 1, refused_per_second: 1, p50_ms: 1, p99_ms: 2, store_up: true })) })],
    ["/-/traffic", () => json({ seconds: 9, route_count: 1, limit_count: 1, limits: [{ limit: x, asked_total: 5, refused_total: 1, asked_per_second: 3, refused_per_second: 2, would_refuse_per_second: 1, without_store_per_second: 0 }],
      routes: TEXTS.map((text) => ({ route: text, requests_total: 5, requests_per_second: 1, client_errors_per_second: 1, too_many_per_second: 1, failed_per_second: 1, refused_per_second: 1, in_flight: 1, p50_ms: 1, p99_ms: null,
        branches: [{ upstream: text, requests_total: 5, requests_per_second: 1, client_errors_per_second: 1, too_many_per_second: 1, failed_per_second: 1, p50_ms: 1, p99_ms: null }] })) })],
    ["/-/routes", () => json({ generation: 3, total: 1, routes: TEXTS.map((text) => ({ priority: 1, name: text, host: text, path: text, match: text, methods: [text], header: {}, action: { upstream: text }, limits: [text], auth: text, origin: text })) })],
    ["/-/history", () => json({ step_seconds: 5, at_ms: [Date.now() - 5000, Date.now()], requests_per_second: [1, 2], failed_per_second: [0, 1], refused_per_second: [0, 1], p50_ms: [null, 1], p99_ms: [1, 1], in_flight: [0, 0],
      marks: [{ at_ms: Date.now() - 3000, kind: "reload", text: x }, { at_ms: Date.now() - 2000, kind: x, text: x }] })],
    ["/-/upstreams", () => json({ upstreams: [{ name: x, balance: x, fail_open: true, servers: [server], in_flight: 1, waiting: 2 }] })],
    ["/-/refusals", () => json({ refusals: [{ time: x, request_id: x, client: x, route: x, status: 429,
      limits: [{ limit: "a", key: "ip=1", reason: x, cost: 1, remaining: 0, retry_after_ms: 5 }] }] })],
    ["/-/status", () => json({ generation: 3, hash: x, loaded_at: x, watch: x, last_reload: reload })],
    ["/-/config", () => json({ [x]: x })],
    ["/-/config/files", () => json({ editable: true, files: [{ name: x, size: 3, writable: true }] })],
    [/^\/-\/config\/files\//, () => ({ headers: { etag: "\"1\"" }, ...json({ pieces: [x, x, x] }) })],
    ["/-/config/history", () => json({ generations: [3, 2].map((generation) => ({ generation, hash: x, loaded_at: x, trigger: x, token: x, diff: [x] })) })],
    ["/-/audit", () => json({ entries: [{ [x]: x }] })],
    ["/-/reload", () => ({ status: 422, ...json({ detail: x, diagnostics: [mistake] }) })],
    ["/metrics", () => ({ contentType: "text/plain", body: `sluicegate_tls_cert_not_after_timestamp_seconds{listener="${quoted(x)}",name="${quoted(x)}"} 5\nsluicegate_connections{listener="${quoted(x)}",protocol="h2"} 1\n` })],
  ];
}

async function mock(page, text) {
  const all = responses(text);
  await page.route((address) => address.pathname !== "/", (route) => {
    const request = route.request();
    const { pathname } = new URL(request.url());
    if (request.method() === "OPTIONS") return route.fulfill({ status: 405, headers: { allow: "GET, HEAD, PUT, POST" } });
    const found = all.find(([path]) => (typeof path === "string" ? path === pathname : path.test(pathname)));
    return found ? route.fulfill(found[1]()) : route.fulfill({ status: 404, ...json({ detail: text }) });
  });
}

// Elements that only a text could have brought, and characters that must be escaped.
async function checkInert(page, name) {
  const found = await page.evaluate(() => ({
    elements: Array.from(document.querySelectorAll("img, iframe, object, embed, base, video, math, template, link[rel=stylesheet], meta[http-equiv], [onload], [onerror], [onfocus]")).map((node) => node.outerHTML),
    scripts: document.scripts.length,
    // eslint-disable-next-line no-control-regex
    hidden: /[\u0000\u001b\u202e\u2066\u200b]/.test(document.body.textContent),
    proto: Object.keys(Object.prototype).length,
    links: Array.from(document.links).map((link) => link.protocol).filter((protocol) => !protocol.startsWith("http")),
  }));
  assert(found.elements.length === 0 && found.scripts === 1 && !found.hidden && found.proto === 0 && found.links.length === 0, `${name}: ${JSON.stringify(found)}`);
}

run(async (open) => {
  assert(TEXTS.length >= 200, `${TEXTS.length} texts`);
  const url = process.argv[2];
  const views = [VIEWS[0], VIEWS[3]];
  await Promise.all(views.map(async (view, place) => {
    const page = await open(view);
    await mock(page, ["<img src=x onerror=hack()>", "\u202e\"><script>hack()</script>"][place]);
    await page.goto(url);
    for (const screen of ["now", "customers", "customers/ip%3D1", "customers/request/1", "routes", "limits", "limits/a", "limits/a/key/ip%3D1", "upstreams", "gateways", "config", "tls"]) {
      await show(page, screen);
      await page.waitForTimeout(300);
      if (screen === "config") {
        await page.click("text=Check the files");
        await page.waitForSelector(".outcome.bad");
        await page.click("text=Effective config");
        await page.click("text=Changes by administrators");
        await page.click("text=Routes in the order");
        await page.waitForFunction(() => Array.from(document.querySelectorAll("details pre")).every((node) => node.textContent !== ""));
      }
      await checkInert(page, screen);
      // Its panels for files, history and changes are shown only here.
      if (screen === "config") await checkAccess(page, `${screen} (hostile)`);
    }
    await show(page, "live");
    await page.click("main form button[type=submit]");
    const rows = await page.waitForFunction((count) => document.querySelectorAll("tbody tr").length >= count && document.querySelectorAll("tbody tr").length, 200);
    assert((await rows.jsonValue()) === 200, "200 requests are shown");
    await checkInert(page, "live");
    const long = await page.evaluate(() => Array.from(document.querySelectorAll("td, tbody th")).some((cell) => cell.textContent.length > 700));
    assert(!long, "a cell is too long");
    if (place > 0) return;
    const addresses = TEXTS.flatMap((text) => [`#/limits/${encodeURIComponent(text)}/key/${encodeURIComponent(`header:x=${text}`)}`, `#/customers/${encodeURIComponent(`header:x=${text}`)}`, `#/customers/request/${encodeURIComponent(text)}`]);
    await page.evaluate(async (hashes) => {
      for (const hash of hashes) {
        location.hash = hash;
        await new Promise((resolve) => window.addEventListener("hashchange", resolve, { once: true }));
      }
    }, addresses);
    await page.evaluate(() => { location.hash = "#/limits/%E0%A4%A/key/<img src=x onerror=hack()>"; });
    await page.waitForTimeout(500);
    await checkInert(page, "addresses");
  }));
});
