// Keys and customers are found by what people type: values in other spellings than the log's, hashes, and texts that are no
// value. Then a reset of a blocked key says that it stays blocked. Arguments: URL.
const { assert, checkAccess, run } = require("./chromium.js");

const [, , url] = process.argv;

run(async (open) => {
  const page = await open({});
  await page.goto(url);
  // What is visible.
  const main = () => page.innerText("#main");
  const waitFor = (words) => page.waitForFunction((wanted) => document.querySelector("#main").textContent.includes(wanted), words);
  const goTo = (hash) => page.evaluate((wanted) => { location.hash = wanted; }, hash);
  const findKey = async (limit, text) => {
    await goTo(`#/limits/${limit}`);
    await page.waitForFunction((name) => document.querySelector("h1").textContent === `Limit ${name}`, limit);
    await page.fill("[name=part0]", text);
    await page.keyboard.press("Enter");
  };
  // The refusals of a key, whose spelling in the log is another one.
  for (const [limit, text] of [["per-key", "anna smith"], ["per-key", "header:X-Key=anna smith"], ["per-secret", "secret key"], ["per-net", "2001:db8::7"]]) {
    await findKey(limit, text);
    await waitFor("Last refusals of this key");
    assert(await page.locator("caption", { hasText: "Last refusals of this key" }).isVisible(), `${limit} ${text}: ${await main()}`);
    assert(!(await main()).includes("No refusal is remembered"), `${limit} ${text}: ${await main()}`);
    await goTo("#/now");
    await page.waitForFunction(() => document.querySelector("h1").textContent !== "x");
  }
  await findKey("per-key", "0123456789abcdef");
  await waitFor("The next request of this key is refused");
  await findKey("per-key", "header:x-other=a");
  await waitFor("it looks like a key by header:x-other");
  await checkAccess(page, "a key that is no value");
  // The same for a customer.
  const findCustomer = async (text) => {
    await goTo("#/customers");
    await page.waitForFunction(() => document.querySelector("h1").textContent === "Customers" && document.querySelectorAll("[name=source] option").length > 1);
    await page.selectOption("[name=source]", "header:x-key");
    await page.fill("[name=value]", text);
    await page.keyboard.press("Enter");
  };
  await findCustomer("0123456789abcdef");
  await waitFor("The limit per-key refuses this customer now.");
  await findCustomer("x-key=0123456789abcdef");
  await waitFor("write only the value: 0123456789abcdef");
  // The log has only a hash of this customer, and the store only a digest.
  await findCustomer("anna smith");
  await waitFor("The limit per-key refuses this customer now.");
  const shown = (await main()).match(/header:x-key=anna%20smith|header:x-key#[0-9a-f]{16}/)[0];
  await goTo(`#/customers/${encodeURIComponent(shown)}`);
  await waitFor("The limit per-key refuses this customer now.");
  await goTo("#/customers/header%3Ax-kez%3Dgold");
  await waitFor("did you mean `header:x-key`?");
  assert(!(await main()).includes("Loading"), await main());
  assert(await page.locator("#reset-all").isHidden(), "nothing can be reset");
  // A block stays.
  await findKey("per-key", "anna smith");
  await page.click("#block");
  await page.locator("#dialog button[type=submit]").click();
  await page.waitForSelector(".outcome.good");
  await page.click("#reset");
  await page.waitForFunction(() => document.getElementById("dialog").open);
  const asked = await page.textContent("#dialog");
  assert(asked.includes("The key stays blocked until") && !asked.includes("full budget"), asked);
  await page.locator("#dialog").getByRole("button", { name: "Reset" }).click();
  await page.waitForFunction(() => /Reset: .* stays blocked/.test(document.querySelector(".outcome.good").textContent));
  // A new override says what it replaces.
  await page.click("#override");
  await page.waitForFunction(() => document.getElementById("dialog").open);
  assert((await page.textContent("#dialog")).includes("It replaces the override blocked until"), await page.textContent("#dialog"));
});
