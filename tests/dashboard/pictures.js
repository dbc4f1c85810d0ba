// Takes a picture of each screen for the manual. Arguments: URL, DIRECTORY.
const { run, show } = require("./chromium.js");

const [, , url, directory] = process.argv;
const SCREENS = { now: "now", customer: "customers/header%3Ax-api-key%3Dacme", gateways: "gateways", routes: "routes", limits: "limits", limit: "limits/per-customer", key: "limits/per-customer/key/header%3Ax-api-key%3Dacme",
  live: "live", overrides: "overrides", upstreams: "upstreams", config: "config" };

run(async (open) => {
  const page = await open({ colorScheme: "light", viewport: { width: 1280, height: 860 }, reducedMotion: "reduce" });
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
  for (const [name, screen] of Object.entries(SCREENS)) {
    await show(page, screen);
    if (name === "live") {
      await page.selectOption("[name=decision]", "");
      await page.click("main form button[type=submit]");
      await page.waitForTimeout(1500);
    }
    await page.waitForTimeout(1200);
    await page.screenshot({ path: `${directory}/dashboard-${name}.png` });
  }
});
