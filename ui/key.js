// #/limits/NAME/key/PART/PART: the numbers of one key, and what an operator can do about them. A part has the form of
// the access log: NAME=VALUE, or NAME#HASH.

function keyLink(limit, key) {
  const parts = key.split(",").filter((part) => part !== "all");
  return `${limitLink(limit)}/key/${parts.map(encodeURIComponent).join("/")}`;
}

// Encodes a value as logs show it: %XX stays what it is.
const encodeShown = (value) => value.replace(/%[0-9A-Fa-f]{2}|[^%]+|%/g, (part) => (/^%[0-9A-Fa-f]{2}$/.test(part) ? part : encodeURIComponent(part)));

function splitPart(part) {
  const at = part.search(/[=#]/);
  return at < 0 ? { name: part, value: null } : { name: part.slice(0, at), value: part.slice(at + 1), isHash: part[at] === "#" };
}

const isKnown = (part) => part.value !== null && part.value !== "***";

// The query that names the key, or null if it cannot be known: a hidden or absent part.
function keyQuery(parts) {
  const split = parts.map(splitPart);
  if (!split.every(isKnown)) return null;
  return split.map((part) => (part.isHash ? `hash=${encodeURIComponent(part.value)}` : `key=${encodeShown(part.value)}`)).join("&");
}

// The key as the body of a refund has it, by the names of the config.
function keyBody(parts, config) {
  const key = {};
  config.filter((name) => name !== "all").forEach((name, place) => {
    const part = splitPart(parts[place]);
    const plain = name.startsWith("ip/") ? "ip" : name;
    key[plain] = part.isHash ? { hash: part.value } : { percent: encodeShown(part.value) };
  });
  return key;
}

// The limits that refused requests, one row for each.
const checksOf = (refusals) => refusals.flatMap((one, place) => one.limits.map((check) => ({ ...one, place: `${place} ${check.limit}`, check })));

function refusalTable(caption, empty, more = []) {
  return table({ caption, key: (row) => row.place, empty, most: 20, columns: [
    { name: "Time", cell: (row) => showTime(row.time) },
    ...more,
    { name: "Client", cell: (row) => showText(row.client) },
    { name: "Route", cell: (row) => showText(row.route, 60) },
    { name: "Why", cell: (row) => (row.check.mode === "shadow" ? "shadow: " : "") + showText(row.check.reason).replaceAll("_", " ") },
    { name: "Cost", number: true, cell: (row) => showNumber(row.check.cost) },
    { name: "Left", number: true, cell: (row) => showNumber(row.check.remaining) },
    { name: "Would pass after", cell: (row) => showDuration(row.check.retry_after_ms) },
    { name: "Request id", cell: (row) => showText(row.request_id || "\u2013", 60) },
  ] });
}

// Finds the refusal that a user complains about, by the id that the response showed.
function refusalFinder() {
  const result = outcome();
  const field = textField("Request id", "request_id", "", { required: true, maxlength: "256" });
  const grid = refusalTable("Limits that refused this request", "No such request is among the last refusals.", [
    { name: "Limit", cell: (row) => (row.check.key ? { text: `${showText(row.check.limit, 60)} (${showText(row.check.key)})`, href: keyLink(row.check.limit, row.check.key) } : showText(row.check.limit, 60)) },
  ]);
  grid.node.hidden = true;
  return section("Find a refused request", el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const id = encodeURIComponent(field.lastElementChild.value.trim());
      const { refusals } = await getJson(`/-/refusals?request_id=${id}`);
      result.node.replaceChildren();
      grid.node.hidden = false;
      grid.update(checksOf(refusals), true);
    } catch (error) {
      result.show("bad", error.message);
    }
  } }, field, el("button", { type: "submit" }, "Find")), result.node, grid.node);
}

function keyScreen(main, [limit, ...parts]) {
  const query = keyQuery(parts);
  const shown = parts.length ? parts.map((part) => showText(part)).join(", ") : "all requests";
  const path = `/-/limits/${encodeURIComponent(limit)}/state?${query}`;
  const result = outcome();
  const state = el("p");
  const meter = el("div", { class: "meter" });
  const numbers = facts("facts", [["left", "Left"], ["reset", "Full again"], ["budget", "Budget"], ["next", "Next request"], ["name", "State key"]]);
  const refused = el("div");
  const problem = el("p", { role: "alert" });
  let algorithm = null;
  const load = async (signal) => {
    try {
      showState(await getJson(path, { signal }));
      setText(problem, "");
    } catch (error) {
      if (error.name !== "AbortError") setText(problem, `The numbers cannot be loaded: ${error.message}`);
    }
  };
  function showState(found) {
    const known = found.policy && isNumber(found.remaining);
    const wait = found.retry_after_ms;
    const next = found.admitted ? "passes now" : wait === null || wait === undefined ? `is refused (${showText(found.reason)})` : `is refused; one passes in ${showDuration(wait)}, at ${new Date(Date.now() + wait).toLocaleTimeString("sv")}`;
    state.replaceChildren(mark(found.admitted ? "good" : "warn", found.admitted ? "Admitted" : "Refused"), ` The next request of this key ${next}.`);
    numbers.set("next", next);
    numbers.set("left", known ? `${showNumber(found.remaining)} of ${showNumber(found.policy.quota)}` : "an override applies, without numbers");
    numbers.set("reset", known ? (found.reset_ms === 0 ? "is full" : `in ${showDuration(found.reset_ms)}`) : "\u2013");
    numbers.set("budget", showPolicy(found.policy, algorithm));
    numbers.set("name", showText(found.state_key || "not shown, because the key is a hash", 300));
    if (known) meter.replaceChildren(bar(found.remaining, found.policy.quota, `${showShare(found.remaining, found.policy.quota)} of the budget is left`));
  }
  async function act(title, effect, action, work, done) {
    if (!(await confirmAction(title, effect, action))) return;
    try {
      result.show("good", done(await work()));
      await load();
    } catch (error) {
      result.show("bad", `${action}: ${error.message}`);
    }
  }
  const reset = el("button", { type: "button", id: "reset", onclick: () => act("Reset this key?",
    `The limit ${showText(limit, 80)} forgets what ${shown} has used. The next request of this key has the full budget.`, "Reset",
    async () => (await request("DELETE", path)).json(), () => `Reset: ${shown} has the full budget of ${showText(limit, 80)} again.`) }, "Reset key");
  const units = textField("Units", "units", "1", { type: "number", min: "1", max: "1000000000", required: true });
  const refund = el("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    const cost = Number(units.lastElementChild.value);
    act("Refund units to this key?", `${shown} gets back ${count(cost, "unit")} of the limit ${showText(limit, 80)}, at most what it has used.`, "Refund", async () => {
      const config = await getJson(`/-/limits/${encodeURIComponent(limit)}`);
      return sendJson("POST", `/-/limits/${encodeURIComponent(limit)}/refund`, { key: keyBody(parts, config.key), cost });
    }, (answer) => (answer.applied ? `Refunded: ${count(cost, "unit")}.` : `Nothing was refunded: ${showText(answer.reason).replaceAll("_", " ")}.`));
  } }, units, el("button", { type: "submit" }, "Refund"));
  const override = overridePanel(result, limit, parts, () => load());
  getJson(`/-/limits/${encodeURIComponent(limit)}`).then((about) => {
    ({ algorithm } = about);
    if (parts.length <= about.key.filter((name) => name !== "all").length) return;
    override.block.remove();
    override.form.replaceWith(el("p", { class: "quiet" }, TENANT));
  }).catch(() => {});
  getJson(`/-/refusals?limit=${encodeURIComponent(limit)}&n=200`).then(({ refusals }) => {
    const key = parts.join(",") || "all";
    const own = checksOf(refusals).filter((one) => one.check.limit === limit && one.check.key === key);
    const grid = refusalTable("Last refusals of this key", "None among the last refusals of this limit.");
    grid.update(own);
    refused.replaceChildren(section(null, grid.node));
  }).catch(() => {});
  const panels = query === null
    ? [section(null, el("p", {}, "The config hides a part of this key, or requests did not have it. So its numbers cannot be found."))]
    : [section(null, state, meter, el("div", { class: "row" }, ...withRole("limits", "Reset", reset), session.allows("edit") ? override.block : null), result.node, problem),
      section("Numbers", numbers.node), section("Refund", ...withRole("limits", "A refund", refund)),
      section("Override", ...withRole("edit", "An override", override.form))];
  main.replaceChildren(el("h1", { tabindex: "-1" }, `Key ${shown}`), ...panels, refused, el("p", {}, el("a", { href: limitLink(limit) }, `Limit ${showText(limit, 80)}`)));
  if (query === null) return { close() {} };
  return { close: poll(2000, load) };
}
