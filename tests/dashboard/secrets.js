// Secrets of a config file stay hidden, and are never replaced by their dots. Arguments: URL, TOKEN, FILE.
const fs = require("node:fs");
const { assert, checkAccess, run, signIn } = require("./chromium.js");

const [, , url, token, file] = process.argv;
const HOST = "<img src=x onerror=hack()>";

run(async (open) => {
  const page = await signIn(await open({}), url, token);
  await page.evaluate(() => { location.hash = "#/config"; });
  const area = page.getByLabel("Text of the file");
  const shown = () => area.inputValue();
  const reopen = async () => {
    const before = await shown();
    await page.getByRole("button", { name: "Discard changes" }).click();
    await page.locator("#dialog").getByRole("button", { name: "Discard" }).click();
    await page.waitForFunction((text) => document.querySelector("textarea").value !== text, before);
  };
  const refuse = async (text, action = "Save and apply") => {
    const before = fs.readFileSync(file, "utf8");
    await area.fill(text);
    await page.getByRole("button", { name: action, exact: true }).click();
    await page.waitForSelector(".outcome.bad");
    const said = await page.locator(".outcome.bad").innerText();
    assert(!said.includes(token), said);
    assert(fs.readFileSync(file, "utf8") === before, "the file was written");
    return said;
  };
  await page.waitForFunction(() => document.querySelector("textarea") && document.querySelector("textarea").value !== "");
  const old = await shown();
  assert(!old.includes(token) && !old.includes("signing-key"), old);
  assert(old.includes('key = "header:x-key"'), "the key of a limit is no secret");

  // Somebody else adds a line beside the token, and puts another secret first.
  fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace(/^token = .*$/m, `keys_secret = "${"0123456789abcdef".repeat(2)}"\n$& # ${HOST}`));
  const stale = await refuse(`${old}# mine\n`);
  assert(stale.includes("Somebody else changed the file"), stale);
  await checkAccess(page, "an edit that is too late");
  await reopen();
  const moved = await refuse(old);
  assert(moved.includes("from another text"), moved);
  await reopen();
  for (const part of [/\u2022(?=[^\u2022])/, /-\d+\u2022/]) {
    for (const action of ["Check", "Save and apply", "Show secrets"]) {
      const said = await refuse((await shown()).replace(part, ""), action);
      assert(said.includes("Write it anew"), said);
      await reopen();
    }
  }
  await area.fill(`${await shown()}# mine\n`);
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.locator("#dialog button[type=submit]").click();
  await page.waitForSelector(".outcome.good");
  await page.getByRole("button", { name: "Show secrets" }).click();
  assert((await shown()).includes(token) && (await shown()) === fs.readFileSync(file, "utf8"), "the secrets are shown");
});
