// Every screen in one colour scheme, wide and narrow: no fault of accessibility. Arguments: URL, SCREENSHOT-DIRECTORY, SCHEME.
const { VIEWS, checkAccess, run, show } = require("./chromium.js");

const [, , url, shots, scheme] = process.argv;
const SCREENS = ["now", "customers", "customers/header%3Ax-key%3Dgold", "routes", "limits", "limits/per-key", "limits/per-key/key/header%3Ax-key%3Dgold", "live", "overrides", "upstreams", "gateways", "config", "tls"];

run(async (open) => {
  await Promise.all(VIEWS.filter((view) => view.colorScheme === scheme).map(async (view) => {
    const page = await open(view);
    await page.goto(url);
    await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
    for (const screen of SCREENS) {
      await show(page, screen);
      await checkAccess(page, `${screen} (${view.colorScheme}, ${view.viewport.width})`);
      await page.screenshot({ path: `${shots}/${screen.replace(/\W+/g, "-")}-${view.colorScheme}-${view.viewport.width}.png`, fullPage: true });
    }
    // At 200 % zoom, a window of 1280 pixels has the width of 640.
    await page.setViewportSize({ width: 640, height: 450 });
    await show(page, "now");
    await checkAccess(page, `now (${view.colorScheme}, zoomed)`);
  }));
});
