// What cannot be loaded while the gateway does not respond is loaded when it responds again. Then another tab changes the
// config, and another version of the gateway takes over. Arguments: URL, TOKEN.
const { assert, run, signIn } = require("./chromium.js");

const [, , url, token] = process.argv;

run(async (open) => {
  const page = await signIn(await open({}), url, token);
  // A reader of the screen hears where the login led.
  assert(await page.evaluate(() => document.activeElement.tagName === "H1"), "the title has the focus after a login");
  const waitFor = (words, of = page) => of.waitForFunction((wanted) => document.querySelector("#main").textContent.includes(wanted), words);
  const cut = (route) => route.abort("connectionrefused");
  for (const [screen, lost, found] of [
    ["limits/per-key", "the gateway does not respond", "Find a key"],
    ["limits/per-key/key/header%3Ax-key%3Dgold", "The limit cannot be loaded", "The next request of this key"],
    ["config", "A part of this screen cannot be loaded", "have the active config"],
    ["customers", "Customers can be found by a request id only", ""],
    ["customers/request/0123", "the gateway does not respond", "No such request"],
  ]) {
    await page.route("**/-/**", cut);
    await page.evaluate((hash) => { location.hash = hash; }, `#/${screen}`);
    await waitFor(lost);
    await page.unroute("**/-/**", cut);
    await waitFor(found);
    await page.waitForFunction((wanted) => !document.querySelector("#main").textContent.includes(wanted), lost);
  }
  await page.evaluate(() => { location.hash = "#/customers"; });
  await page.waitForFunction(() => document.querySelectorAll("[name=source] option").length > 1);
  // The screen follows a change that somebody else makes.
  await page.evaluate(() => { location.hash = "#/config"; });
  await waitFor("have the active config");
  const generation = () => page.evaluate(() => Number(/generation (\d+), loaded/.exec(document.querySelector("#main").textContent)[1]));
  const before = await generation();
  const changed = await page.evaluate(async (secret) => {
    const headers = { authorization: `Bearer ${secret}` };
    const { files } = await (await fetch("/-/config/files", { headers })).json();
    const path = `/-/config/files/${encodeURIComponent(files[0].name)}`;
    const file = await fetch(path, { headers });
    const body = (await file.text()).replace('rate = "1/h"', 'rate = "2/h"');
    return (await fetch(path, { method: "PUT", body, headers: { ...headers, "content-type": "application/toml", "if-match": file.headers.get("etag") } })).status;
  }, token);
  assert(changed === 200, `the file is saved: ${changed}`);
  await page.waitForFunction((old) => {
    const shown = /generation (\d+), loaded/.exec(document.querySelector("#main").textContent);
    return shown && Number(shown[1]) > old;
  }, before);
  // Another version takes over while the page is open.
  assert(await page.locator("#renewed").isHidden(), "the version is that of the page");
  await page.evaluate(() => live.onEvent({ ...live.event, version: "99.0.0" }));
  assert(await page.getByRole("button", { name: "Reload this page" }).isVisible(), "the page says that it is old");
});
