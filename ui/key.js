// #/limits/NAME/key/PART/PART: the numbers of one key, and what an operator can do about them. A part has the form of
// the access log: NAME=VALUE, NAME#HASH, or NAME or NAME! for an absent one.

function keyLink(limit, key) {
  const parts = key.split(",").filter((part) => part !== "all");
  return `${limitLink(limit)}/key/${parts.map(encodeURIComponent).join("/")}`;
}

// Encodes a value as logs show it: %XX stays what it is.
const encodeShown = (value) => value.replace(/%[0-9A-Fa-f]{2}|[^%]+|%/g, (part) => (/^%[0-9A-Fa-f]{2}$/.test(part) ? part : encodeURIComponent(part)));

function splitPart(part) {
  const at = part.search(/[=#]/);
  return at < 0 ? { name: part.replace(/!$/, ""), value: null } : { name: part.slice(0, at), value: part.slice(at + 1), isHash: part[at] === "#" };
}

// A part with alternatives is shown without the spaces of the config.
const shownName = (name) => name.replaceAll(" | ", "|");
const withoutAll = (names) => names.filter((name) => name !== "all");

// The names that the parts have in the config; those of a tenant follow those of the limit's key.
function keyNames(about, parts) {
  const names = withoutAll(about.key);
  return about.fair && parts.length > names.length ? [...names, ...withoutAll(about.fair.key)] : names;
}

// Why the numbers of the key cannot be found; null if they can.
function whyUnknown(about, parts) {
  const names = keyNames(about, parts);
  const split = parts.map(splitPart);
  if (split.length !== names.length || split.some(({ name }, place) => name !== shownName(names[place]))) return `This is no key of the limit, which counts by ${showText(about.key.join(", "), 300)}.`;
  if (split.some(({ value }) => value === "***")) return "The config hides this key.";
  const absent = split.find(({ value }) => value === null);
  if (absent) return `The requests did not have ${showText(absent.name)}. They share one budget, which nothing names.`;
  return null;
}

// What the key may spend, which an override may change. The window of a concurrency limit is the lease of a slot, which
// says nothing about its budget.
function showPolicy(policy, algorithm) {
  if (!policy) return "\u2013";
  return algorithm === "concurrency" ? `${showNumber(policy.quota)} at a time` : `${showNumber(policy.quota)} in ${showDuration(policy.window_ms)}`;
}

// The query that names the key, and its tenant.
function keyQuery(about, parts) {
  const own = keyNames(about, []).length;
  const names = (place) => (place < own ? ["key", "hash"] : ["tenant", "tenant_hash"]);
  return parts.map(splitPart).map(({ value, isHash }, place) => (isHash ? `${names(place)[1]}=${encodeURIComponent(value)}` : `${names(place)[0]}=${encodeShown(value)}`)).join("&");
}

// The key as the body of a refund has it.
function keyBody(about, parts) {
  const names = keyNames(about, parts).map((name) => (name.startsWith("ip/") ? "ip" : name));
  return Object.fromEntries(parts.map(splitPart).map(({ value, isHash }, place) => [names[place], isHash ? { hash: value } : { percent: encodeShown(value) }]));
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
  const shown = parts.length ? parts.map((part) => showText(part)).join(", ") : "all requests";
  const first = section(null, el("p", { class: "quiet" }, "Loading\u2026"));
  const refused = el("div");
  let stop = () => {};
  main.replaceChildren(el("h1", { tabindex: "-1" }, `Key ${shown}`), first, refused, el("p", {}, el("a", { href: limitLink(limit) }, `Limit ${showText(limit, 80)}`)));
  getJson(`/-/limits/${encodeURIComponent(limit)}`).then((about) => {
    const why = whyUnknown(about, parts);
    if (why) first.replaceChildren(el("p", {}, why));
    else if (first.isConnected) stop = showKey(first, about, parts, shown);
  }).catch((error) => first.replaceChildren(el("p", { role: "alert" }, `The limit cannot be loaded: ${error.message}`)));
  getJson(`/-/refusals?limit=${encodeURIComponent(limit)}&n=200`).then(({ refusals }) => {
    const own = checksOf(refusals).filter(({ check }) => check.limit === limit && keyLink(limit, check.key || "all") === keyLink(limit, parts.join(",") || "all"));
    const grid = refusalTable("Last refusals of this key", "None among the last refusals of this limit.");
    grid.update(own);
    refused.replaceChildren(section(null, grid.node));
  }).catch(() => {});
  return { close: () => stop() };
}

// Shows the numbers of a key and what can be done about them, from the section `first`. Returns a function that stops it.
function showKey(first, about, parts, shown) {
  const name = showText(about.limit, 80);
  const page = `/-/limits/${encodeURIComponent(about.limit)}`;
  const path = `${page}/state?${keyQuery(about, parts)}`;
  const result = outcome();
  const problem = el("p", { role: "alert" });
  const state = el("p");
  const meter = el("div", { class: "meter" });
  const numbers = facts("facts", [["left", "Left"], ["reset", "Full again"], ["budget", "Budget"], ["next", "Next request"], ["name", "State key"]]);
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
    numbers.set("budget", showPolicy(found.policy, about.algorithm));
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
  const effect = keyNames(about, parts).length > keyNames(about, []).length ? "The shared budget stays as it is."
    : about.tier_of ? "It counts IPv6 clients in networks of other sizes too. These are not reset, and may still refuse the next request."
      : "The next request of this key has the full budget.";
  const reset = el("button", { type: "button", id: "reset", onclick: () => act("Reset this key?", `The limit ${name} forgets what ${shown} has used. ${effect}`, "Reset",
    async () => (await request("DELETE", path)).json(), () => `Reset: ${name} forgot ${shown}. ${effect}`) }, "Reset key");
  const units = textField("Units", "units", "1", { type: "number", min: "1", max: "1000000000", required: true });
  const refund = el("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    const cost = Number(units.lastElementChild.value);
    act("Refund units to this key?", `${shown} gets back ${count(cost, "unit")} of the limit ${name}, at most what it has used.`, "Refund",
      () => sendJson("POST", `${page}/refund`, { key: keyBody(about, parts), cost }),
      (answer) => (answer.applied ? `Refunded: ${count(cost, "unit")}.` : `Nothing was refunded: ${showText(answer.reason).replaceAll("_", " ")}.`));
  } }, units, el("button", { type: "submit" }, "Refund"));
  const override = overridePanel(result, about, parts, () => load());
  first.replaceChildren(state, meter, el("div", { class: "row" }, ...withRole("limits", "Reset", reset), ...(session.allows("edit") && override.block ? [override.block] : [])), result.node, problem);
  first.after(section("Numbers", numbers.node), section("Refund", ...withRole("limits", "A refund", refund)),
    section("Override", ...withRole("edit", "An override", ...override.form)));
  return poll(2000, load);
}
