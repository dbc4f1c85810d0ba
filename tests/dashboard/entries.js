// Which overrides the page writes, and which it refuses to write. Runs its functions without a browser; argument: the directory `ui`.
const assert = require("node:assert");
const fs = require("node:fs");
const vm = require("node:vm");

const source = ["text.js", "actions.js", "key.js", "override.js", "config.js"].map((name) => fs.readFileSync(`${process.argv[2]}/${name}`, "utf8")).join("\n");
const sandbox = { crypto: globalThis.crypto, session: { allows: () => true }, el: (name, attributes, ...children) => children.filter(Boolean).join(" ") };
const page = vm.runInNewContext(`${source}\n({ whyUnknown, whyNoOverride, whyNoBlock, overrideEntry, withOverride, addOverride, keyQuery, keyBody, keyButtons, maskSecrets, session: { allows: () => true } })`, sandbox);

const plain = { limit: "x", key: ["header:x-a"], fair: null, mode: "enforce", over: "refuse", candidate_of: null, tier_of: null };
const two = { ...plain, key: ["header:x-a", "cookie:b | query:c"] };
const fair = { ...plain, key: ["all"], fair: { key: ["header:x-tenant"] } };
const tiered = { ...plain, key: ["ip"], tier_of: "x" };
const wider = { ...tiered, limit: "x.48", key: ["header:x-a", "ip/32/48"] };

// A limit, the parts on the screen of a key, and the entry.
for (const [about, parts, entry] of [
  [plain, ["header:x-a=a%2Cb"], '{ key = [{ percent = "a%2Cb" }], rate = 0 }'],
  [plain, ["header:x-a#0123456789abcdef"], '{ key = [{ hash = "0123456789abcdef" }], rate = 0 }'],
  [{ ...plain, key: ["all"] }, [], '{ key = ["*"], rate = 0 }'],
  [two, ["header:x-a=v", "cookie:b|query:c=w"], '{ key = [{ percent = "v" }, { percent = "w" }], rate = 0 }'],
  [tiered, ["ip=2001:db8::"], '{ key = [{ percent = "2001%3Adb8%3A%3A" }], rate = 0 }'],
  [wider, ["header:x-a=v", "ip/32/48=2001:db8::"], '{ key = [{ percent = "v" }, "2001:db8::/48"], rate = 0 }'],
  [{ ...tiered, limit: "x.64" }, ["ip=2001:db8::"], '{ key = ["2001:db8::/64"], rate = 0 }'],
]) assert.strictEqual(page.overrideEntry(about, parts, "rate", "0"), entry);

// Entries that would mean another key than the one that is shown.
for (const [about, parts, why] of [
  [fair, ["header:x-tenant#0123456789abcdef"], /Tenants share/],
  [fair, [], /Tenants share/],
  [plain, ["header:x-a"], /did not have header:x-a/],
  [plain, ["header:x-a!"], /did not have header:x-a/],
  [two, ["header:x-a=v", "cookie:b|query:c"], /did not have cookie:b/],
  [plain, ["header:x-a=***"], /hides/],
  [plain, ["header:x-b=v"], /no key of the limit/],
  [plain, ["header:x-a=v", "ip=::1"], /no key of the limit/],
  [plain, [], /no key of the limit/],
  [wider, ["header:x-a=v", "ip/32/48#0123456789abcdef"], /address/],
  [wider, ["header:x-a=v", 'ip/32/48=" , rate = 0 '], /address/],
]) {
  assert.match(page.whyNoOverride(about, parts), why);
  assert.throws(() => page.overrideEntry(about, parts, "rate", "0"), why);
}

// Limits at which a block refuses nothing.
assert.strictEqual(page.whyNoBlock(plain, { x: {}, y: { after: { value: "z" } } }), null);
assert.strictEqual(page.whyNoBlock({ ...plain, over: "delay" }, {}), null);
for (const [change, why] of [[{ mode: "shadow" }, /shadow/], [{ candidate_of: "y", mode: "shadow" }, /candidate/i], [{ over: "annotate" }, /annotate/], [{ over: "upstream:slow" }, /upstream:slow/]]) {
  assert.match(page.whyNoBlock({ ...plain, ...change }, {}), why);
}
assert.match(page.whyNoBlock(plain, { x: {}, y: { after: { value: "x" } } }), /limit y comes after/);
assert.match(page.whyNoBlock(wider, { y: { after: { value: "x" } } }), /limit y comes after/);

// The buttons of a key: a block only where it refuses something, and never without saying what it undoes.
const buttons = (about, parts, override) => page.keyButtons({ about, parts }, override).map(({ id }) => id).join();
assert.strictEqual(buttons(plain, ["header:x-a=v"], null), "reset,block,override,refund");
assert.strictEqual(buttons(plain, ["header:x-a=v"], { source: "live", blocked: true }), "reset,remove,override,refund");
assert.strictEqual(buttons(plain, ["header:x-a=v"], { source: "config", blocked: true }), "reset,override,refund");
assert.strictEqual(buttons({ ...plain, mode: "shadow" }, ["header:x-a=v"], null), "reset,override,refund");
assert.strictEqual(buttons(fair, ["header:x-tenant=a"], null), "reset,refund");

// Secrets of a file are numbered dots on the screen, and come back when it is saved.
const pieces = ['token = "', "one", '"\nurl = "redis://me:', "two", "@h\"\n"];
const masked = page.maskSecrets(pieces);
for (const word of ["one", "two"]) assert.ok(!masked.shown.includes(word), masked.shown);
const [first, second] = masked.shown.match(/\u2022+[^\u2022]+\u2022/g);
assert.strictEqual(masked.restore(masked.shown), pieces.join(""));
assert.strictEqual(masked.restore(masked.shown.replace(first, "new")), pieces.join("").replace("one", "new"));
assert.strictEqual(masked.restore(`${masked.shown}token = "${first}"`), `${pieces.join("")}token = "one"`);
const swapped = masked.shown.replace(first, "x").replace(second, first).replace("x", second);
for (const text of [page.maskSecrets(pieces).shown, masked.shown.slice(0, 12), masked.shown.replace(first, first.slice(1)), masked.shown.replace(first, first.slice(-1)),
  masked.shown.replace("-1", ""), masked.shown.replace("-1", "-9"), swapped, `${masked.shown}x = '${first}'`]) {
  assert.throws(() => masked.restore(text), /secret was changed in part/, text);
}
const dotted = page.maskSecrets(["# \u2022\u2022 a list\n"]);
assert.strictEqual(dotted.restore(dotted.shown), "# \u2022\u2022 a list\n");

// The numbers of a tenant are found by its name.
assert.strictEqual(page.keyQuery({ ...fair, key: ["ip"] }, ["ip=::1", "header:x-tenant=a"]), "literal=%3A%3A1&tenant_literal=a");
assert.strictEqual(page.keyQuery(two, ["header:x-a=v", "cookie:b|query:c#0123456789abcdef"]), "literal=v&hash=0123456789abcdef");
assert.strictEqual(page.whyUnknown(fair, ["header:x-tenant=a"]), null);
assert.strictEqual(page.whyUnknown(fair, ["header:x-tenant#0123456789abcdef"]), null);
assert.strictEqual(page.keyQuery(fair, ["header:x-tenant#0123456789abcdef"]), "tenant_hash=0123456789abcdef");
assert.deepEqual({ ...page.keyBody(fair, ["header:x-tenant=a"]) }, { "header:x-tenant": { percent: "a" } });
assert.deepEqual({ ...page.keyBody(two, ["header:x-a=v", "cookie:b|query:c#0123456789abcdef"]) }, { "header:x-a": { percent: "v" }, "cookie:b | query:c": { hash: "0123456789abcdef" } });

// Texts of files: the line, whether it has overrides, and the text with the entry, or the reason against it.
const edit = (text, line, exists) => page.withOverride(text, line, "rate", exists, "E");
assert.strictEqual(edit('[limit.x]\nrate = "1/s"\n', 2, false), '[limit.x]\noverrides = [E]\nrate = "1/s"\n');
assert.strictEqual(edit('[limit.x]\n  "rate"= "1/s"\n', 2, false), '[limit.x]\noverrides = [E]\n  "rate"= "1/s"\n');
assert.strictEqual(edit("a\noverrides = [\n", 2, true), "a\noverrides = [E, \n");
assert.strictEqual(edit("limit.x = { rate = 1, 'overrides' =[] }", 1, true), "limit.x = { rate = 1, 'overrides' =[E, ] }");
assert.strictEqual(edit("limit.x.overrides = []", 1, true), "limit.x.overrides = [E, ]");
for (const [text, line, exists] of [
  ["[limit]\na = { overrides = [] }, b = { overrides = [] }", 2, true],
  ["[limit.x]\nburst = 2\n", 2, false],
  ["[limit.x]\nburst = 2\n", 2, true],
  ["[[limit.x.overrides]]\n", 1, true],
  ["[limit]\nx = { rate = 1 }\n", 2, false],
  ["my_overrides = []", 1, true],
  ["[limit.x]\n", 9, false],
]) assert.throws(() => edit(text, line, exists), /by hand/, text);

// A whole edit: what is asked before it is saved, or the reason against it.
let written = "";
async function change({ size = "0", pinned = null, changes, limits = {}, more }) {
  const said = [];
  Object.assign(sandbox, {
    getJson: async (path) => ({
      "/-/limits/x": plain, "/-/status": { pinned }, "/-/config/files": { files: [{ name: "main.toml" }] },
      "/-/config": { config: { limit: { x: { rate: { value: "1/s", origin: "/etc/main.toml:2" } }, ...limits } } },
    })[path],
    request: async (method, path, options) => { written = method === "PUT" ? options.body : written; return { text: async () => '[limit.x]\nrate = "1/s"\n', headers: { get: () => "tag" }, json: async () => (method === "PUT" ? { changes } : null) }; },
    confirmAction: async (title, text) => { said.push(`ask: ${title} ${text}`); return false; },
  });
  await page.addOverride({ show: (level, ...texts) => said.push(`${level}: ${texts.join(" ")}`) }, "x", ["header:x-a=v"], size, more);
  return said.join("\n");
}
const own = { kind: "limit", name: "x", option: "overrides", text: "limit x: overrides: added" };
(async () => {
  assert.match(await change({ changes: [own] }), /^ask: Block this key\? The limit x refuses every request of header:x-a=v, on this gateway. The file main.toml .*overrides: added$/);
  assert.match(await change({ changes: [own], more: { length: "1h", reason: 'a "note"' } }), /until 20\d\d-/);
  assert.match(written, /rate = 0, until = "20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", note = "a \\"note\\"" \}/);
  assert.match(await change({ changes: [own], size: "5/s" }), /^ask: Override this key\?/);
  assert.match(await change({ changes: [own], pinned: 3 }), /^bad: Generation 3 is active in place of the files/);
  assert.match(await change({ changes: [] }), /^bad: The file would not change/);
  for (const other of [{ ...own, name: "y" }, { ...own, option: "rate" }, { kind: "route", name: "x", option: "overrides", text: "r" }]) {
    assert.match(await change({ changes: [own, other] }), /^bad: The files differ from the active config/);
  }
  const limits = { y: { after: { value: "x" } } };
  assert.match(await change({ changes: [own], limits }), /^bad: The limit y comes after/);
  assert.match(await change({ changes: [own], limits, size: "5/s" }), /^ask/);
})();
