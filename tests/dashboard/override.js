// Blocks a key with the keyboard, and gives other keys another size, by edits of the config. Arguments: URL, TOKEN.
const { assert, checkAccess, run } = require("./chromium.js");

const [, , url, token] = process.argv;

run(async (open) => {
  const page = await open({});
  await page.goto(url);
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  const show = async (key) => {
    await page.evaluate((part) => { location.hash = `#/limits/per-key/key/${encodeURIComponent(part)}`; }, `header:x-key=${key}`);
    await page.waitForFunction((value) => document.querySelector("h1").textContent.includes(value) && document.querySelector("#override") && document.querySelector(".story").textContent !== "", key);
  };
  await page.waitForFunction(() => document.getElementById("freshness").textContent === "live");
  await show("gold");
  await page.waitForFunction(() => document.activeElement.tagName === "H1");
  let keys = 0;
  const press = async (key) => {
    keys += 1;
    await page.keyboard.press(key);
  };
  const tabUntil = async (text) => {
    do await press("Tab");
    while (keys < 9 && await page.evaluate(() => document.activeElement.textContent) !== text);
  };
  await tabUntil("Block key");
  await press("Enter");
  await page.waitForFunction(() => document.activeElement.name === "for");
  const text = await page.textContent("#dialog");
  assert(text.includes("The limit per-key refuses every request of header:x-key=gold") && text.includes("until somebody removes it"), text);
  await checkAccess(page, "the question before a block");
  await page.fill("[name=note]", "ticket 17");
  await tabUntil("Block");
  await press("Enter");
  await page.waitForSelector(".outcome.good");
  const blocked = await page.textContent(".outcome.good");
  assert(/blocked until 20\d\d-.* UTC \(ticket 17\)/.test(blocked) && blocked.includes("memory of this gateway"), blocked);
  assert(keys <= 8, `${keys} keystrokes`);
  // A block is shown with its end and its note, and is lifted in its place.
  await page.waitForSelector("#remove");
  assert((await page.textContent("#main .cards")).includes("ticket 17"), "the note is shown");
  await page.click("#remove");
  await page.locator("#dialog").getByRole("button", { name: "Remove" }).click();
  await page.waitForSelector("#block");
  // The same as an edit of the file, which shows the change first.
  const override = async (key, size, place = "file", end = "") => {
    await show(key);
    await page.click(size === "0" ? "#block" : "#override");
    await page.waitForFunction(() => document.getElementById("dialog").open);
    if (size !== "0") await page.fill("#dialog [name=size]", size);
    await page.selectOption("#dialog [name=for]", end);
    await page.selectOption("#dialog [name=place]", place);
    await page.locator("#dialog button[type=submit]").click();
  };
  await override("gold", "0");
  await page.getByRole("button", { name: "Save and apply" }).waitFor();
  const change = await page.textContent("#dialog");
  assert(change.includes("refuses every request of header:x-key=gold, on this gateway") && change.includes('percent = "gold"'), change);
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.waitForSelector(".outcome.good");
  await page.waitForFunction(() => document.querySelector("#main .cards").textContent.includes("from the config"));
  for (const key of ["silver", 'a"]#%2C \u00e9'.replace(" \u00e9", "%20%C3%A9")]) {
    await override(key, "unlimited");
    await page.getByRole("button", { name: "Save and apply" }).click();
    await page.waitForSelector(".outcome.good");
  }
  // A key has one entry, and what cannot be applied is shown to be written by hand.
  await override("silver", "5/h");
  await page.waitForSelector(".outcome.bad");
  const refused = await page.textContent(".outcome.bad");
  assert(refused.includes("already has an entry") && refused.includes('rate = "5/h" }'), refused);
  await checkAccess(page, "key with a refused override");
  // A question does not outlive its screen.
  await page.click("#reset");
  await page.waitForFunction(() => document.getElementById("dialog").open);
  await page.evaluate(() => { location.hash = "#/config"; });
  await page.waitForFunction(() => document.querySelector("h1").textContent === "Config" && !document.getElementById("dialog").open);
  // A mistake in a file leads to its line, and a change is shown before it is saved.
  await page.waitForFunction(() => document.querySelector(".editor textarea") && document.querySelector(".editor textarea").value.includes("[limit.per-key]"));
  const edit = (from, to) => page.evaluate(([before, after]) => {
    const area = document.querySelector(".editor textarea");
    area.value = area.value.replace(before, after);
    area.dispatchEvent(new Event("input"));
  }, [from, to]);
  await edit('rate = "1/h"', 'rate = "1/eon"');
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.click(".outcome.bad button.link");
  const selected = await page.evaluate(() => {
    const area = document.querySelector(".editor textarea");
    return area.value.slice(area.selectionStart, area.selectionEnd);
  });
  assert(selected.includes("1/eon"), `the line of the mistake is selected: ${selected}`);
  await edit('rate = "1/eon"', 'rate = "2/h"');
  await page.getByRole("button", { name: "Save and apply" }).first().click();
  await page.waitForFunction(() => document.getElementById("dialog").open && document.getElementById("dialog").textContent.includes("per-key"));
  await page.getByRole("button", { name: "Cancel" }).click();
});
