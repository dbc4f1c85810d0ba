// Text that is not saved is not lost without a question, and a rollback shows what it changes. Arguments: URL, TOKEN.
const { assert, checkAccess, run, signIn } = require("./chromium.js");

const [, , url, token] = process.argv;

run(async (open) => {
  const page = await signIn(await open({}), url, token);
  const title = (text) => page.waitForFunction((wanted) => document.querySelector("h1").textContent === wanted, text);
  const asks = (text) => page.waitForFunction((wanted) => document.getElementById("dialog").open && document.getElementById("dialog").textContent.includes(wanted), text);
  const answer = (name) => page.locator("#dialog").getByRole("button", { name }).click();
  const link = (name) => page.locator("nav").getByRole("link", { name }).click();
  const value = () => page.$eval(".editor textarea", (area) => area.value);
  const isGuarded = () => page.evaluate(() => !window.dispatchEvent(new Event("beforeunload", { cancelable: true })));
  const edit = async (from, to) => {
    await page.waitForFunction((wanted) => document.querySelector(".editor textarea") && document.querySelector(".editor textarea").value.includes(wanted), from);
    await page.evaluate(([before, after]) => {
      const area = document.querySelector(".editor textarea");
      area.value = area.value.replace(before, after);
      area.dispatchEvent(new Event("input"));
    }, [from, to]);
  };
  await link("Limits");
  await title("Limits");
  await link("Config");
  await edit("burst = 2", "burst = 2 # mine");
  assert(await isGuarded(), "the tab does not close without a question");
  // A link, and the way back in the history.
  for (const leave of [() => link("Live"), () => page.goBack()]) {
    await leave();
    await asks("Your changes of sluicegate.toml are not saved.");
    await checkAccess(page, "the question before text is lost");
    await answer("Cancel");
    await title("Config");
    assert((await value()).includes("# mine") && (await page.evaluate(() => location.hash)) === "#/config", "the text stays");
  }
  await page.getByRole("button", { name: "Discard changes" }).click();
  await asks("Discard your changes?");
  await answer("Cancel");
  // The login ends by itself, and the text is there after the next one.
  await page.evaluate(() => {
    session.keep("wrong", "edit");
    return getJson("/-/status").catch(() => {});
  });
  await title("Log in");
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
  await title("Config");
  await page.waitForFunction(() => document.querySelector(".editor textarea") && document.querySelector(".editor textarea").value.includes("# mine"));
  assert((await page.textContent("#main")).includes("your text from before the login ended"), "the operator knows it");
  assert(await isGuarded(), "it is not saved");
  await page.click("#logout");
  await asks("are not saved");
  await answer("Cancel");
  await link("Limits");
  await asks("Leave without saving?");
  await answer("Discard and leave");
  await title("Limits");
  assert(!(await isGuarded()), "nothing is left to lose");
  await link("Config");
  await edit("burst = 2", "burst = 1");
  await page.getByRole("button", { name: "Save and apply" }).first().click();
  await asks("per-key");
  await answer("Save and apply");
  await page.waitForSelector(".outcome.good");
  assert(!(await isGuarded()), "what is saved is not lost");
  assert((await page.textContent("#main")).includes("have the active config"), "the files are active");
  await page.getByRole("button", { name: "Return to 1" }).click();
  await asks("This changes:");
  const preview = await page.textContent("#dialog");
  assert(preview.includes("burst 1 \u2192 2") && preview.includes("per-key"), preview);
  await checkAccess(page, "the question before a rollback");
  await answer("Return");
  await page.waitForFunction(() => Array.from(document.querySelectorAll(".outcome")).some((one) => one.textContent.includes("Generation 3 is active")));
});
