// Keys of limits of each kind: which ones can be blocked, and why the others cannot. Arguments: URL, TOKEN, FILE of the config.
const fs = require("node:fs");
const { assert, checkAccess, run, signIn } = require("./chromium.js");

const [, , url, token, file] = process.argv;
// A limit, a part of its key, a text on the screen, and whether a block and an override are offered.
const SCREENS = [
  ["tenants", "header:x-tenant#0123456789abcdef", "has the hash 0123456789abcdef", false, false],
  ["tenants", "header:x-tenant=a", "Tenants share each budget", false, false],
  ["shared", "header:x-shared", "did not have header:x-shared", false, false],
  ["shared", "header:x-shared=a", "passes now", true, true],
  ["pin", "header:x-pin=***", "The config hides this key", false, false],
  ["noted", "header:x-note=a", "annotate", false, true],
  ["tiers.48", "ip/32/48#0123456789abcdef", "Only the address names this network", false, false],
  ["watched", "ip=127.0.0.1", "shadow mode refuses nothing", false, true],
];

run(async (open) => {
  const page = await signIn(await open({}), url, token);
  const show = async (limit, part, text) => {
    await page.evaluate((hash) => { location.hash = hash; }, `#/limits/${limit}/key/${encodeURIComponent(part)}`);
    await page.waitForFunction(([part, text]) => document.querySelector("h1").textContent.includes(part) && document.querySelector("#main").textContent.includes(text), [part, text]);
  };
  const override = async (size, outcome, text, place) => {
    await page.click("#override");
    await page.waitForFunction(() => document.getElementById("dialog").open);
    await page.fill("#dialog [name=size]", size);
    await page.selectOption("#dialog [name=place]", place);
    await page.locator("#dialog button[type=submit]").click();
    await page.locator(`.outcome.${outcome}`, { hasText: text }).waitFor();
  };
  for (const [limit, part, text, canBlock, canOverride] of SCREENS) {
    await show(limit, part, text);
    const found = await page.evaluate(() => [document.querySelector("#block"), document.querySelector("#override")].map(Boolean));
    assert(found[0] === canBlock && found[1] === canOverride, `${limit} ${part}: ${found}`);
    if (limit === "pin" || limit === "noted") await checkAccess(page, `${limit} ${part}`);
  }
  for (const place of ["live", "file"]) await override("0", "bad", "refuses nothing", place);

  await show("tiers.48", "ip/32/48=2001:db8:1::", "passes now");
  await page.click("#block");
  await page.waitForFunction(() => document.getElementById("dialog").open);
  await page.selectOption("#dialog [name=for]", "");
  await page.selectOption("#dialog [name=place]", "file");
  await page.locator("#dialog button[type=submit]").click();
  await page.getByRole("button", { name: "Save and apply" }).waitFor();
  const text = await page.textContent("#dialog[open]");
  assert(text.includes('limit tiers: overrides: added { key = ["2001:db8:1::/48"], rate = 0 }'), text);
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.waitForSelector(".outcome.good");
  await page.click("#reset");
  await page.waitForFunction(() => document.getElementById("dialog").open);
  assert((await page.textContent("#dialog[open]")).includes("other sizes"), "a reset leaves the other networks");
  await page.getByRole("button", { name: "Cancel" }).click();

  // A rollback to a config that is not written puts it in force in place of the files.
  fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace("edit = true", "edit = false"));
  const pinned = await page.evaluate(async () => {
    await request("POST", "/-/reload");
    const history = await request("GET", "/-/config/history");
    const headers = { "content-type": "application/json", "if-match": history.headers.get("etag") };
    return (await sendJson("POST", "/-/rollback", { generation: 2 }, { headers })).pinned;
  });
  assert(pinned === 2, `pinned: ${pinned}`);
  await show("shared", "header:x-shared=a", "passes now");
  await override("5/h", "bad", "active in place of the files", "file");
});
