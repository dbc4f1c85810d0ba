// Login by token and by a one-time link, and the age of the numbers in a hidden tab. Arguments: URL, TOKEN.
const { assert, checkAccess, run } = require("./chromium.js");

const [, , url, token] = process.argv;
const isLive = () => document.getElementById("freshness").textContent === "live";

run(async (open) => {
  const page = await open({});
  await page.goto(url);
  await page.waitForSelector("#token");
  await checkAccess(page, "login");
  assert(await page.evaluate(() => document.activeElement.id === "token"), "the field has the focus");
  await page.fill("#token", "wrong");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".outcome.bad");
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  await page.waitForFunction(isLive);
  const traces = await page.evaluate(() => [location.href, document.cookie, JSON.stringify(localStorage)].join(" "));
  assert(!traces.includes(token), `the token is in ${traces}`);
  await page.reload();
  await page.waitForFunction(isLive);

  // A hidden tab closes its stream; what it shows then says how old it is.
  const hide = (hidden) => page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { value, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await page.waitForFunction(() => !document.getElementById("stale").hidden && /old/.test(document.getElementById("stale").textContent));
  await hide(false);
  await page.waitForFunction(isLive);
  await page.click("#logout");
  await page.waitForSelector("#token");
  assert(await page.evaluate(() => sessionStorage.length === 0), "a token is left after the logout");

  // A link works once: its code leaves the address at once, and is sent to nobody but the gateway.
  const link = await open({});
  const bodies = [];
  await link.route("**/-/session", (route) => {
    bodies.push(route.request().postData());
    route.fulfill(bodies.length === 1
      ? { json: { token, role: "limits", expires_at: "2030-01-01T00:00:00Z" } }
      : { status: 401, contentType: "application/problem+json", body: JSON.stringify({ detail: "the code was used" }) });
  });
  await link.goto(`${url}#code=Zm9v-9`);
  await link.waitForFunction(isLive);
  assert(bodies[0] === '{"code":"Zm9v-9"}', `sent ${bodies[0]}`);
  assert(!(await link.evaluate(() => location.href)).includes("Zm9v"), "the code is in the address");
  const again = await open({});
  await again.route("**/-/session", (route) => route.fulfill({ status: 401, contentType: "application/problem+json", body: "{}" }));
  await again.goto(`${url}#code=Zm9v-9`);
  await again.waitForSelector("#token");
  assert((await again.textContent("#main")).includes("works once"), "a used link says so");
  // A new link in the same tab, which shows the login.
  await again.unroute("**/-/session");
  await again.route("**/-/session", (route) => route.fulfill({ json: { token, name: "anna", role: "read", expires_at: "2030-01-01T00:00:00Z" } }));
  await again.evaluate(() => { location.hash = "#code=YmFy-7"; });
  await again.waitForFunction(isLive);
  assert(!(await again.evaluate(() => location.href)).includes("YmFy"), "the code is in the address");
  assert((await again.textContent("#gateway")).includes("role read as anna"), "role and name are shown");
});
