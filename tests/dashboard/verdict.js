// The first sentence of the page, and the reasons below it, for states of the gateway. Argument: URL.
const { assert, run } = require("./chromium.js");

const WELL = { at_ms: 1_800_000_000_000, version: "1.0.0", lifecycle: "ready", uptime_seconds: 90, generation: 3, loaded_at: "2026-01-15T05:56:21Z",
  last_reload: null, problems: [], store: { shared: true, up: true, breaker: 0, gateways: 2 }, seconds: 10,
  servers: { count: 2, unhealthy_count: 0, unhealthy: [], fail_open_count: 0, fail_open: [] },
  certificates: { count: 1, expiring_count: 0, expiring: [] },
  requests: { total: 900, failed_total: 0, refused_total: 90, in_flight: 1, per_second: 100, failed_per_second: 0, refused_per_second: 10, p50_ms: 1, p99_ms: 9 },
  limits: { count: 1, list: [{ limit: "per-ip", mode: "enforce", refused_total: 90, asked_per_second: 100, refused_per_second: 10, would_refuse_per_second: 0, without_store_per_second: 0 }] } };
const bad = { level: "bad", kind: "store_down", text: "The limit store does not respond.", link: "#/limits" };
const warn = { level: "warn", kind: "pinned", text: "A rollback keeps generation 1 active in place of the files.", link: "#/config" };

// Changes to a healthy gateway; the sentence; the reasons in their order, with the screens that they link to.
const CASES = [
  [{}, "All is well.", []],
  [{ requests: { ...WELL.requests, per_second: null, refused_per_second: null } }, "No problem so far.", []],
  [{ requests: null }, "No problem so far.", []],
  [{ problems: [warn] }, "one thing needs attention", ["A rollback keeps generation 1 active #/config"]],
  [{ problems: [bad, warn] }, "Something is broken: 1 problem", ["The limit store does not respond #/limits", "A rollback keeps generation 1 active #/config"]],
  [{ problems: [warn, { ...warn, kind: "other" }] }, "2 things need attention", ["A rollback #/config", "A rollback #/config"]],
  // What is not an address of a screen is no link.
  [{ problems: [{ ...warn, link: "javascript:alert(1)" }] }, "one thing needs attention", ["A rollback #/now"]],
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
  // A table says nothing about its rows before they are loaded.
  let release = () => {};
  const held = new Promise((resolve) => { release = resolve; });
  await page.route("**/-/limits", async (route) => {
    await held;
    await route.fulfill({ contentType: "application/json", body: '{"limits":[]}' });
  });
  await page.evaluate(() => { location.hash = "#/limits"; });
  await page.waitForSelector("#main section .caption");
  const main = () => page.textContent("#main");
  assert((await main()).includes("Loading\u2026") && !(await main()).includes("No limit has such a name"), await main());
  release();
  await page.waitForFunction(() => document.getElementById("main").textContent.includes("No limit has such a name"));
  // An address has the order of a list. Times of a day have their zone.
  const route = (name, failed) => ({ route: name, requests_total: 9, requests_per_second: 9, client_errors_per_second: 0, too_many_per_second: 0, failed_per_second: failed, in_flight: 0, p50_ms: 1, p99_ms: 1 });
  await page.route("**/-/traffic", (request) => request.fulfill({ contentType: "application/json", body: JSON.stringify({ seconds: 10, route_count: 3, routes: [route("some", 1), route("none", 0), route("most", 9)], limit_count: 0, limits: [] }) }));
  await page.route("**/-/routes", (request) => request.fulfill({ contentType: "application/json", body: '{"routes":[]}' }));
  const names = () => page.evaluate(() => Array.from(document.querySelectorAll("#main tbody th")).map((cell) => cell.textContent).join());
  await page.evaluate(() => { location.hash = "#/routes?order=-5xx"; });
  await page.waitForSelector("#main tbody th");
  assert((await names()) === "most,some,none", await names());
  await page.click("#main thead button:text('5xx')");
  assert((await names()) === "none,some,most", await names());
  assert((await page.evaluate(() => location.hash)) === "#/routes?order=5xx", "the address has the order");
  // The upstreams of a split are in the order of the config. Without a split, there is no such table.
  const tables = () => page.evaluate(() => Array.from(document.querySelectorAll("#main table")).filter((table) => table.checkVisibility()).map((table) => Array.from(table.querySelectorAll("tbody tr")).map((row) => row.innerText.replace(/\s+/g, " "))));
  assert((await tables()).length === 1, JSON.stringify(await tables()));
  const branch = (upstream, failed) => ({ ...route(null, failed), upstream });
  await page.route("**/-/traffic", (request) => request.fulfill({ contentType: "application/json", body: JSON.stringify({ seconds: 10, route_count: 1, routes: [{ ...route("most", 9), branches: [branch("app", 2), branch("next", 7)] }], limit_count: 0, limits: [] }) }));
  await page.route("**/-/routes", (request) => request.fulfill({ contentType: "application/json", body: JSON.stringify({ routes: [{ name: "most", host: null, path: "/", limits: [], action: { split: [{ upstream: "next", weight: 5 }, { upstream: "app", weight: 95 }] } }] }) }));
  await page.evaluate(() => { location.hash = "#/limits"; });
  await page.evaluate(() => { location.hash = "#/routes"; });
  await page.waitForFunction(() => document.getElementById("main").innerText.includes("95"));
  await page.mouse.move(0, 0);
  const split = (await tables())[1];
  assert(JSON.stringify(split) === JSON.stringify(["next most 5 9 0 0 7 1 ms 1 ms", "app most 95 9 0 0 2 1 ms 1 ms"]), JSON.stringify(split));
  const clock = await page.evaluate(() => showClock(0));
  assert(/^\d\d:\d\d:00 UTC/.test(clock), clock);
});
