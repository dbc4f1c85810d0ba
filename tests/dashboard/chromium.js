// Chromium for the scripts of this directory. A page that breaks its policy, or fails with an error, fails the script.
const { chromium } = require("playwright-core");
const fs = require("node:fs");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const AXE_RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"];

// Runs `work(browser, open)`; `open(options)` returns a page that is watched.
exports.run = async (work) => {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"] });
  const faults = [];
  const open = async (options) => {
    const context = await browser.newContext(options);
    const page = await context.newPage();
    await page.exposeFunction("hack", () => { faults.push("a hostile text was executed"); });
    await page.exposeFunction("reportViolation", (text) => { faults.push(`policy: ${text}`); });
    await page.addInitScript(() => document.addEventListener("securitypolicyviolation",
      (event) => window.reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`)));
    page.on("pageerror", (error) => faults.push(`error: ${error.stack}`));
    page.on("dialog", (dialog) => { faults.push("a dialog opened"); dialog.dismiss(); });
    return page;
  };
  try {
    await work(open);
  } catch (error) {
    faults.push(error.stack);
  } finally {
    await browser.close();
  }
  for (const fault of new Set(faults)) console.error(fault);
  process.exit(faults.length > 0 ? 1 : 0);
};

exports.assert = (is, text) => {
  if (!is) throw new Error(text);
};

// Signs in, and waits until the page shows live numbers. Returns the page.
exports.signIn = async (page, url, token) => {
  await page.goto(url);
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
  return page;
};

// Goes to a screen and waits until its title and content are there.
exports.show = async (page, screen) => {
  await page.evaluate((hash) => { location.hash = hash; }, `#/${screen}`);
  await page.waitForFunction(() => document.querySelector("#main section"));
  await page.waitForLoadState("networkidle", { timeout: 300 }).catch(() => {});
};

// Fails if the page breaks a rule of WCAG that axe-core knows, or is wider than its window.
exports.checkAccess = async (page, name) => {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((rules) => window.axe.run({ runOnly: rules }), AXE_RULES);
  const texts = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html} ${node.failureSummary}`).join("\n")}`);
  exports.assert(violations.length === 0, `${name}: ${texts.join("\n")}`);
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  exports.assert(wider <= 0, `${name} is ${wider} pixels wider than the window`);
};

exports.VIEWS = [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 320]]
  .map(([colorScheme, width]) => ({ colorScheme, viewport: { width, height: 900 }, reducedMotion: "reduce" }));
