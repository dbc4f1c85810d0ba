// The job of support: from the request id that a customer names to a customer who is served again, and the other way round, to
// a blocked one. Arguments: URL, REQUEST-ID.
const { assert, checkAccess, run } = require("./chromium.js");

const [, , url, id] = process.argv;

run(async (open) => {
  const page = await open({});
  await page.goto(url);
  const find = async (text, label) => {
    await page.waitForFunction(() => document.querySelectorAll("[name=source] option").length > 1);
    await page.fill("[name=value]", text);
    const chosen = await page.$eval("[name=source]", (select) => select.selectedOptions[0].textContent);
    assert(chosen === label, `${text} is looked for as ${chosen}`);
    await page.keyboard.press("Enter");
  };
  const text = (selector) => page.textContent(selector);
  const waitFor = (words) => page.waitForFunction((wanted) => document.querySelector("#main").textContent.includes(wanted), words);
  // The id of a refused request, as the customer sends it.
  await find(id, "Request id");
  await waitFor("refused with status 429");
  const story = await text(".story");
  assert(story.includes("header:x-key=gold had used up the limit per-key (1/h, burst 2): 0 left, and the request cost 1."), story);
  await checkAccess(page, "a refused request");
  await page.getByRole("link", { name: "All limits of header:x-key=gold" }).click();
  await waitFor("The limit per-key refuses this customer now.");
  await checkAccess(page, "a customer");
  const row = () => page.locator("tr", { hasText: "per-key" }).first();
  assert((await row().textContent()).includes("2 of 2"), await row().textContent());
  // One key gets more for a day.
  await row().getByRole("button", { name: "Override: per-key, header:x-key=gold" }).click();
  await page.fill("#dialog [name=size]", "50/h");
  await page.fill("#dialog [name=note]", "launch");
  await page.locator("#dialog button[type=submit]").click();
  await page.waitForSelector(".outcome.good");
  // The outcome names the note before the row is drawn again.
  await page.locator("tr", { hasText: "per-key" }).filter({ hasText: "(launch)" }).first().waitFor();
  assert(/until 20\d\d-.*\(launch\)/.test(await row().textContent()), await row().textContent());
  // Everything that the customer has used is forgotten at once.
  await page.click("#reset-all");
  assert((await text("#dialog")).includes("per-key"), await text("#dialog"));
  await page.locator("#dialog").getByRole("button", { name: "Reset all" }).click();
  await page.waitForFunction(() => /Reset: \d+ key/.test(document.querySelector(".outcome.good") ? document.querySelector(".outcome.good").textContent : ""));
  await waitFor("No limit refuses this customer now.");
  // What nobody knows, and what is no value.
  await page.evaluate(() => { location.hash = "#/customers"; });
  await find("f".repeat(32), "Request id");
  await waitFor("No such request is among the last refusals");
  await page.evaluate(() => { location.hash = "#/customers/header%3Ax-kez%3Dgold"; });
  await waitFor("did you mean `header:x-key`?");
  await page.evaluate(() => { location.hash = "#/customers"; });
  await find("192.0.2.7", "Client address");
  await waitFor("Customer 192.0.2.7");
});
