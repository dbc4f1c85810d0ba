// The first sentence of the page, and the reasons below it, for states of the gateway. Argument: URL.
const { assert, run } = require("./chromium.js");

const WELL = { at_ms: 1_800_000_000_000, version: "1.0.0", lifecycle: "ready", uptime_seconds: 90, generation: 3, loaded_at: "2026-01-15T05:56:21Z",
  last_reload: null, store: { shared: true, up: true, breaker: 0, gateways: 2 }, seconds: 10,
  servers: { count: 2, unhealthy_count: 0, unhealthy: [], fail_open_count: 0, fail_open: [] },
  certificates: { count: 1, expiring_count: 0, expiring: [] },
  requests: { total: 900, failed_total: 0, refused_total: 90, in_flight: 1, per_second: 100, failed_per_second: 0, refused_per_second: 10, p50_ms: 1, p99_ms: 9 },
  limits: { count: 1, list: [{ limit: "per-ip", mode: "enforce", refused_total: 90, asked_per_second: 100, refused_per_second: 10, would_refuse_per_second: 0, without_store_per_second: 0 }] } };
const down = { upstream: "app", server: "http://10.0.0.1:3000", address: null, state: "down", reason: "check: timeout", returns_in_ms: null };
const day = 86400;

// Changes to a healthy gateway; the sentence; the reasons in their order, with the screens that they link to.
const CASES = [
  [{}, "All is well.", []],
  [{ requests: { ...WELL.requests, per_second: null, refused_per_second: null } }, "No problem so far.", []],
  [{ requests: null }, "No problem so far.", []],
  [{ requests: { ...WELL.requests, refused_per_second: 60 } }, "one thing needs attention", ["60 % of the requests are refused, most by the limit per-ip #/limits/per-ip"]],
  [{ requests: { ...WELL.requests, failed_per_second: 60 } }, "Something is broken", ["60 % of the requests fail #/upstreams"]],
  [{ requests: { ...WELL.requests, per_second: 0, refused_per_second: 0 } }, "All is well.", []],
  [{ servers: { ...WELL.servers, unhealthy_count: 1, unhealthy: [down] } }, "one thing needs attention", ["1 of 2 servers is not healthy: http://10.0.0.1:3000 #/upstreams"]],
  [{ servers: { ...WELL.servers, unhealthy_count: 1, unhealthy: [down], fail_open_count: 1, fail_open: ["app"] },
    last_reload: { result: "failure", diagnostics_count: 2 }, store: { ...WELL.store, up: false } }, "Something is broken: 2 problems",
  ["limit store does not respond #/limits", "No server is healthy in 1 upstream: app #/upstreams", "rejected (2 mistakes). Generation 3 stays active #/config"]],
  [{ certificates: { count: 2, expiring_count: 2, expiring: [{ listener: "l", name: "old.example", not_after: 1_800_000_000 - day }, { listener: "l", name: "new.example", not_after: 1_800_000_000 + 3 * day }] } },
    "Something is broken: 1 problem", ["old.example expired 1 d ago #/tls", "new.example expires in 3 d #/tls"]],
  [{ store: { ...WELL.store, shared: false, evicted_total: 3, evicted_seconds_ago: 599 } }, "Something is broken: 1 problem", ["Memory is full: 3 keys in use were evicted #/limits"]],
  [{ store: { ...WELL.store, shared: false, evicted_total: 3, evicted_seconds_ago: 600 } }, "All is well.", []],
  [{ lost_log_lines: { total: 7, seconds_ago: 5 } }, "one thing needs attention", ["Log lines are missing: 7 lines since the start #/now"]],
  [{ lost_log_lines: { total: 7, seconds_ago: 900 } }, "All is well.", []],
  [{ descriptors: { open: 81, max: 100 } }, "one thing needs attention", ["81 of 100 file descriptors are open #/tls"]],
  [{ descriptors: { open: 96, max: 100 } }, "Something is broken", ["96 of 100 file descriptors #/tls"]],
  [{ descriptors: { open: 80, max: null } }, "All is well.", []],
  [{ overrides: { live: 3, rejected: 1, bans_total: 9 } }, "one thing needs attention", ["1 override has a mistake and is skipped #/limits"]],
  [{ lifecycle: "draining" }, "one thing needs attention", ["The gateway is stopping "]],
];

run(async (open) => {
  const page = await open({});
  let event = WELL;
  await page.route("**/-/live", (route) => route.fulfill({ contentType: "text/event-stream", body: `: comment\n\ndata: ${JSON.stringify(event)}\n\n` }));
  for (const [change, sentence, reasons] of CASES) {
    event = { ...WELL, ...change };
    await page.goto(process.argv[2]);
    await page.waitForSelector(".verdict h2 svg");
    const title = await page.textContent(".verdict h2");
    assert(title.includes(sentence), `${title} instead of ${sentence}`);
    const found = await page.evaluate(() => Array.from(document.querySelectorAll(".verdict li a")).map((link) => [link.textContent, link.getAttribute("href") || ""]));
    assert(found.length === reasons.length, JSON.stringify(found));
    reasons.forEach((reason, place) => {
      const [, text, href] = /^(.*) (\S*)$/.exec(reason);
      assert(found[place][0].includes(text) && found[place][1] === href, `${found[place]} instead of ${reason}`);
    });
  }
});
