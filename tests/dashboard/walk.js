// With the keyboard alone, from the open page to the reset of the most refused key, also past many problems. Argument: URL.
const { assert, run } = require("./chromium.js");

const KEYS_MAX = 12;

run(async (open) => {
  const page = await open({});
  await page.goto(process.argv[2]);
  await page.waitForSelector('#main a[href*="/key/"]');
  // Certificates expire, besides the server that is down: five problems are listed.
  await page.evaluate(() => {
    const update = live.onEvent;
    live.onEvent = (event) => {
      const expiring = ["a", "b", "c", "d", "e"].map((name) => ({ level: "warn", kind: "certificate_expires", text: `The certificate ${name} expires.`, link: "#/now" }));
      event.problems = [...event.problems, ...expiring];
      update(event);
    };
  });
  await page.waitForFunction(() => document.querySelectorAll("#main .verdict li").length >= 5);
  await page.waitForSelector("#main .verdict li, #main .verdict.good");
  let keys = 0;
  const press = async (key) => {
    keys += 1;
    await page.keyboard.press(key);
  };
  const focus = () => page.evaluate(() => `${document.activeElement.tagName} ${document.activeElement.textContent}`);
  const pressUntil = async (key, wanted) => {
    do {
      await press(key);
      assert(keys <= KEYS_MAX, `after ${keys} keystrokes, the focus is at ${await focus()}`);
    } while (!(await page.evaluate(wanted)));
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert(outline !== "none", `the focus is not visible at ${await focus()}`);
  };
  await pressUntil("Tab", () => document.activeElement.id === "skip");
  await press("Enter");
  await pressUntil("Tab", () => document.activeElement.textContent === "Go to the most refused keys");
  await press("Enter");
  await pressUntil("Tab", () => (document.activeElement.getAttribute("href") || "").includes("/key/"));
  await press("Enter");
  await page.waitForFunction(() => document.activeElement.tagName === "H1" && document.activeElement.textContent.startsWith("Key"));
  await page.waitForSelector("#reset");
  await pressUntil("Tab", () => document.activeElement.id === "reset");
  await press("Enter");
  await page.waitForFunction(() => document.activeElement.textContent === "Cancel");
  const text = await page.textContent("#dialog");
  assert(text.includes("header:x-key=gold") && text.includes("per-key"), `the dialog names key and effect: ${text}`);
  await pressUntil("Tab", () => document.activeElement.textContent === "Reset");
  await press("Enter");
  await page.waitForSelector(".outcome.good");
  assert((await focus()).includes("Reset key"), "the focus returns to the button");
  assert(keys <= KEYS_MAX, `${keys} keystrokes`);
  console.log(`${keys} keystrokes`);
});
