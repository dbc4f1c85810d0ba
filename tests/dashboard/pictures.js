// Takes a picture of each screen for the manual. Arguments: URL, DIRECTORY.
const { run, show } = require("./chromium.js");

const [, , url, directory] = process.argv;
const SCREENS = { now: "now", customer: "customers/header%3Ax-api-key%3Dacme", gateways: "gateways", routes: "routes", limits: "limits", limit: "limits/per-customer", key: "limits/per-customer/key/header%3Ax-api-key%3Dacme",
  customers: "customers", request: "customers/request/", live: "live", overrides: "overrides", upstreams: "upstreams", tls: "tls", config: "config" };

run(async (open) => {
  const page = await open({ colorScheme: "light", viewport: { width: 1280, height: 860 }, reducedMotion: "reduce" });
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
  for (const [name, screen] of Object.entries(SCREENS)) {
    const ending = name === "request" ? await page.evaluate(async () => (await (await fetch("-/refusals?limit=per-customer&n=1")).json()).refusals[0].request_id) : "";
    await show(page, screen + ending);
    if (name === "live") {
      await page.selectOption("[name=decision]", "");
      await page.click("main form button[type=submit]");
      await page.waitForTimeout(1500);
    }
    await page.waitForTimeout(1200);
    await page.screenshot({ path: `${directory}/dashboard-${name}.png` });
  }
});
