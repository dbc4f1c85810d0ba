// Finds what was changed over all limits, and ends it from its row. Arguments: URL.
const { VIEWS, assert, checkAccess, run, show } = require("./chromium.js");

const [, , url] = process.argv;

run(async (open) => {
  const text = (page) => page.textContent("#main");
  const waitFor = (page, words) => page.waitForFunction((wanted) => document.querySelector("#main").textContent.includes(wanted), words);
  await Promise.all(VIEWS.map(async (view) => {
    const page = await open(view);
    await page.goto(url);
    await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
    await show(page, "overrides");
    await waitFor(page, "ticket 17");
    await waitFor(page, "number 1");
    await checkAccess(page, `overrides (${view.colorScheme}, ${view.viewport.width})`);
  }));
  const page = await open({});
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
  await page.getByRole("link", { name: "List", exact: true }).click();
  await waitFor(page, "ticket 17");
  const all = await text(page);
  for (const words of ["100/min, burst 2", "header:x-key=gold", "blocked", "All limits (103)", "The first 100 of 103 are shown.", "UTC"]) assert(all.includes(words), `${words}: ${all}`);
  await page.getByRole("button", { name: "Show more" }).click();
  await waitFor(page, "header:x-key=many-99");
  assert(!(await page.isVisible("text=Show more")), "all are shown");
  // One limit of all; the address keeps it.
  await page.selectOption("[name=limit]", "per-key");
  await page.waitForFunction(() => document.querySelectorAll("#main tbody tr").length === 2);
  assert((await page.evaluate(() => location.hash)) === "#/overrides?limit=per-key", "the limit is in the address");
  const act = async (label, action) => {
    await page.getByRole("button", { name: label }).click();
    await page.waitForFunction(() => document.getElementById("dialog").open);
    await checkAccess(page, label);
    const asked = await page.textContent("#dialog");
    await page.locator("#dialog").getByRole("button", { name: action }).click();
    await page.waitForSelector(".outcome.good");
    return asked;
  };
  const asked = await act("Unblock: per-key, header:x-key=gold", "Unblock");
  assert(asked.includes("The limit per-key admits requests of header:x-key=gold again, within its budget, on this gateway."), asked);
  await page.waitForFunction(() => !document.querySelector("#main tbody").textContent.includes("gold"));
  await act("Remove: per-key, header:x-key=silver", "Remove");
  await waitFor(page, "There are none");
  await show(page, "overrides");
  await act("Lift ban: logins, ip=127.0.0.1", "Reset");
  await waitFor(page, "No key is banned");
});
