// Blocks a key that is shown as a hash, by an edit of an included file that somebody else edits meanwhile. Keys without a
// value, and keys of tenants, cannot be blocked. Arguments: URL, TOKEN, FILE.
const fs = require("node:fs");
const { assert, checkAccess, run, signIn } = require("./chromium.js");

const [, , url, token, file] = process.argv;

run(async (open) => {
  const page = await signIn(await open({}), url, token);
  const rows = async (limit, pattern) => {
    await page.evaluate((name) => { location.hash = `#/limits/${name}`; }, limit);
    const link = page.getByRole("link", { name: pattern });
    await link.waitFor();
    return link;
  };
  const shows = async (secret) => assert(!(await page.textContent("body")).includes(secret), `${secret} is shown`);

  await (await rows("per-account", /^header:x-account#[0-9a-f]{16},ip=127\.0\.0\.1$/)).click();
  await page.waitForSelector("#block");
  await shows("mallory-secret");
  const block = async () => {
    await page.click("#block");
    await page.waitForFunction(() => document.getElementById("dialog").open);
    await page.selectOption("#dialog [name=for]", "");
    await page.selectOption("#dialog [name=place]", "file");
    await page.locator("#dialog button[type=submit]").click();
    await page.getByRole("button", { name: "Save and apply" }).waitFor();
    const text = await page.textContent("#dialog");
    assert(text.includes("The file conf.d/limits.toml is changed") && /limit per-account: overrides: added .*hash = "[0-9a-f]{16}"/.test(text), text);
  };
  await block();
  fs.appendFileSync(file, "# edited by somebody else\n");
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.waitForSelector(".outcome.bad");
  const refused = await page.textContent(".outcome.bad");
  assert(refused.includes("changed") && refused.includes("hash = "), refused);
  await checkAccess(page, "a key with an edit that is too late");
  await block();
  await page.getByRole("button", { name: "Save and apply" }).click();
  await page.waitForSelector(".outcome.good");
  await shows("mallory-secret");

  await (await rows("per-account", /^header:x-account!,ip=127\.0\.0\.1$/)).click();
  await page.waitForFunction(() => document.querySelector("main").textContent.includes("The requests did not have"));
  assert(await page.locator("#block, #reset, #override, #refund").count() === 0, "a key without a value has actions");

  await (await rows("queue", /^(all,)?header:x-tenant#[0-9a-f]{16}$/)).click();
  await page.waitForFunction(() => document.querySelector("main").textContent.includes("fair.weights"));
  assert(await page.locator("#block, #override").count() === 0, "a tenant can be overridden");
});
