// What pages read of the responses of another origin. Arguments: URL of a page that is listed, URL of one that is not, URL of
// the gateway.
const { assert, run } = require("../dashboard/chromium.js");

const [, , listed, unlisted, api] = process.argv;
const JSON_BODY = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify("x".repeat(3000)) };

// Path, options of `fetch`, status, text in the body, and whether the page reads `Retry-After`.
const CASES = [
  ["/app", {}, 200, "ok", false],
  ["/limited", {}, 200, "ok", false],
  ["/limited", {}, 429, "quota", true],
  ["/limited", { method: "PUT", headers: { authorization: "Bearer x" } }, 429, "quota", true],
  ["/small", JSON_BODY, 413, "max_body", false],
  ["/private", {}, 401, "status", false],
  ["/private", { method: "DELETE", headers: { authorization: "Bearer x" } }, 401, "status", false],
  ["/down", {}, 502, "status", false],
  ["/nowhere", {}, 404, "status", false],
  ["/nowhere", { method: "DELETE" }, 404, "status", false],
];

const read = (page, path, options) => page.evaluate(async ([url, options]) => {
  try {
    const response = await fetch(url, options);
    return { status: response.status, text: await response.text(), retryAfter: response.headers.get("retry-after"),
      quota: response.headers.get("ratelimit") };
  } catch (error) {
    return { status: 0, text: String(error) };
  }
}, [api + path, options]);

run(async (open) => {
  const page = await open({});
  await page.goto(listed);
  for (const [path, options, status, text, isLimited] of CASES) {
    const found = await read(page, path, options);
    const about = `${path} ${JSON.stringify(options).slice(0, 80)}: ${JSON.stringify(found)}`;
    assert(found.status === status && found.text.includes(text), about);
    assert(!isLimited || (Number(found.retryAfter) > 0 && found.quota.includes("one")), about);
  }
  // Without `cors`, and for a page that is not listed, the browser keeps everything from the page.
  assert((await read(page, "/own", {})).status === 0, "/own has no headers");
  await page.goto(unlisted);
  for (const [path, options] of CASES) {
    const found = await read(page, path, options);
    assert(found.status === 0, `${path} for a page that is not listed: ${JSON.stringify(found)}`);
  }
});
