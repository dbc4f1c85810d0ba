// #/limits/NAME/key/PART/PART: the numbers of one key, and what an operator can do about them. A part has the form of
// the access log: NAME=VALUE, NAME#HASH, or NAME or NAME! for an absent one.

function keyLink(limit, key) {
  const parts = key.split(",").filter((part) => part !== "all");
  return `${limitLink(limit)}/key/${parts.map(encodeURIComponent).join("/")}`;
}

// Decodes a value of the log for a title; what is no text stays.
function decodeShown(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value;
  }
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

// The query that names the key, and its tenant. The values of the address are those of requests, whatever they look like.
function keyQuery(about, parts) {
  const own = keyNames(about, []).length;
  const names = (place) => (place < own ? ["literal", "hash"] : ["tenant_literal", "tenant_hash"]);
  return parts.map(splitPart).map(({ value, isHash }, place) => (isHash ? `${names(place)[1]}=${encodeURIComponent(value)}` : `${names(place)[0]}=${encodeShown(value || "")}`)).join("&");
}

// The key as the body of a refund has it.
function keyBody(about, parts) {
  const names = keyNames(about, parts).map((name) => (name.startsWith("ip/") ? "ip" : name));
  return Object.fromEntries(parts.map(splitPart).map(({ value, isHash }, place) => [names[place], isHash ? { hash: value } : { percent: encodeShown(value) }]));
}

// Which refusals are known, if there is none. Gateways share their last hundred.
const describeNoRefusal = (gateways) => (gateways > 1 ? "No refusal is remembered by this gateway, or among the last 100 of each other gateway." : "No refusal is remembered by this gateway.");

// What to do if each gateway shows another hash of the same key; null if keys can be compared.
function hashNote(comparable) {
  return comparable === false && isShared() ? "Without keys_secret in [admin], each gateway shows another hash of the same key: counts of such keys are not added up, and a hash of another gateway leads nowhere. Set the same keys_secret at all gateways." : null;
}

// The limits that refused requests, one row for each.
const checksOf = (refusals) => refusals.flatMap((one, place) => one.limits.map((check) => ({ ...one, place: `${place} ${check.limit}`, check })));

// With a shared store, the refusals are those of all gateways.
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
    { name: "Request id", cell: (row) => (row.request_id ? { text: showText(row.request_id, 60), href: requestLink(row.request_id) } : "\u2013") },
    { name: "Gateway", cell: (row) => showText(row.host || row.gateway, 40) },
  ] });
}

// The column with the limit and its key, of refusals by several limits.
const REFUSED_BY = { name: "Refused by", cell: (row) => (row.check.key ? { text: `${showText(row.check.limit, 60)} (${showText(row.check.key)})`, href: keyLink(row.check.limit, row.check.key) } : showText(row.check.limit, 60)) };

function keyScreen(main, [limit, ...parts]) {
  const shown = parts.length ? parts.map((part) => showText(part)).join(", ") : "all requests";
  const under = el("p", { class: "under" }, `Limit ${showText(limit, 80)}`);
  const first = section(null, el("p", { class: "quiet" }, "Loading\u2026"));
  const refused = el("div");
  const problem = outcome();
  let stop = () => {};
  main.replaceChildren(trail(["Limits", "#/limits"], [showText(limit, 80), limitLink(limit)]), el("h1", { tabindex: "-1" }, `Key ${shown}`), under, first, refused);
  // Loads the refusals of the key. The gateway finds them by each spelling of it.
  const loadRefused = (about) => loadWithRetry(refused, async () => {
    const own = parts.join(",");
    // Refusals name the tenants too, which share the budget.
    const isOneKey = !about.fair || parts.length > keyNames(about, []).length;
    const { refusals, gateways } = await getJson(`/-/refusals?limit=${encodeURIComponent(limit)}${isOneKey ? `&key=${encodeURIComponent(own || "all")}` : ""}&n=200`);
    const isOwn = (one) => isOneKey || own === "" || one.startsWith(`${own},`);
    const grid = refusalTable("Last refusals of this key", describeNoRefusal(gateways));
    grid.update(checksOf(refusals).filter(({ check }) => check.limit === limit && isOwn(withoutAll((check.key || "").split(",")).join(","))));
    refused.replaceChildren(section(null, grid.node));
  }, (error) => {
    problem.show("bad", `The last refusals cannot be loaded: ${error.message}`);
    refused.replaceChildren(problem.node);
  });
  const describe = (about) => setText(under, `of the limit ${showText(limit, 80)}: ${showBudget(about)}${about.mode === "shadow" ? ", in shadow mode, which never refuses" : ""}`);
  let known = null;
  loadWithRetry(first, async () => {
    const about = await getJson(`/-/limits/${encodeURIComponent(limit)}`);
    known = about;
    describe(about);
    const why = whyUnknown(about, parts);
    if (why) first.replaceChildren(el("p", {}, why));
    else if (first.isConnected) stop = showKey(first, keyTarget(about, parts));
    loadRefused(about);
  }, (error) => first.replaceChildren(el("p", { role: "alert" }, `The limit cannot be loaded: ${error.message}`)));
  // The limit may change while its key is shown.
  const follow = followConfig(() => known && loadWithRetry(under, async () => describe(Object.assign(known, await getJson(`/-/limits/${encodeURIComponent(limit)}`))), () => {}));
  return { close: () => stop(), update: follow };
}

// What the next request of a key meets, in words.
function describeNext(found) {
  const wait = found.retry_after_ms;
  if (found.rate_not_known) return "passes or not by the rate that it states, which is not known here";
  if (found.admitted) return "passes now";
  const why = found.ban && found.ban.banned ? "is refused by a ban" : "is refused";
  const { override } = found;
  if (override && override.blocked) return `${why}: an override has it ${describeOverride(override)}`;
  if (wait === null || wait === undefined) return `${why} (${showText(found.reason || "blocked").replaceAll("_", " ")})`;
  return `${why}; one passes in ${showDuration(wait)}, at ${showClock(Date.now() + wait)}`;
}

const OVERRIDE_SOURCES = { live: "store", config: "config", file: "file of overrides" };

// Whether a key has used something, or something is special about it.
const hasUsed = ({ policy, remaining, override, ban }) => !policy || remaining < policy.quota || Boolean(override) || Boolean(ban && (ban.banned || ban.bans));

// Shows the numbers of a key and what can be done about them, from the section `first`. Returns a function that stops it.
function showKey(first, target) {
  const { about, parts, state: path } = target;
  const result = outcome();
  const problem = el("p", { role: "alert" });
  const state = el("p", { class: "story" });
  const meter = el("div", { class: "meter" });
  const numbers = facts("cards plain", [["left", "Left"], ["budget", "Budget"], ["reset", "Full again"], ["override", "Override"], ...(about.ban ? [["ban", "Ban"]] : [])]);
  const technical = facts("facts", [["name", "State key"]]);
  const load = async (signal) => {
    try {
      showState(await getJson(path, { signal }));
      setText(problem, "");
    } catch (error) {
      if (error.name !== "AbortError") setText(problem, `The numbers cannot be loaded: ${error.message}`);
    }
  };
  const toolbar = el("div", { class: "row" });
  let shownButtons = "";
  // Buttons stay the same elements while they say the same, so that the focus stays.
  function showButtons(override) {
    const buttons = keyButtons(target, override);
    const key = buttons.map(({ text }) => text).join();
    if (shownButtons === key) return;
    shownButtons = key;
    const old = document.activeElement && toolbar.contains(document.activeElement) ? document.activeElement.id : null;
    toolbar.replaceChildren(...(buttons.length ? buttons.map(({ id, text, kind }) => el("button", { type: "button", id, class: kind, onclick: () => KEY_ACTIONS[id](result, target, load) }, text))
      : [needsRole("limits", "A change of this key")]));
    if (old) (document.getElementById(old) || toolbar.firstElementChild).focus();
  }
  function showState(found) {
    const known = found.policy && isNumber(found.remaining);
    const level = found.admitted || found.rate_not_known ? "good" : "warn";
    state.replaceChildren(mark(level, found.rate_not_known ? "Not known" : found.admitted ? "Admitted" : "Refused"), ` The next request of this key ${describeNext(found)}.`);
    numbers.set("left", known ? `${showNumber(found.remaining)} of ${showNumber(found.policy.quota)}` : "\u2013", known ? "" : found.rate_not_known ? "requests of this key state its rate" : "an override applies, without numbers");
    numbers.set("reset", known ? (found.reset_ms === 0 ? "is full" : `in ${showDuration(found.reset_ms)}`) : "\u2013");
    // An override has a budget of its own.
    numbers.set("budget", found.override ? budgetOf(found.override) : showBudget(about));
    numbers.set("override", found.override ? describeOverride(found.override) : "none", found.override ? [`from the ${OVERRIDE_SOURCES[found.override.source] || "config"}`, describeSetting(found.override) && `set ${describeSetting(found.override)}`].filter(Boolean).join(", ") : "");
    const { ban } = found;
    if (ban) numbers.set("ban", ban.banned ? `for ${showDuration(ban.left_ms)} more` : "none", ban.banned ? `${count(ban.bans, "ban")} so far` : `after ${count(ban.refusals_left, "more refusal")}`);
    technical.set("name", showText(found.state_key || "not shown, because the key is a hash", 300));
    if (known) meter.replaceChildren(bar(found.remaining, found.policy.quota, `${showShare(found.remaining, found.policy.quota)} of the budget is left`));
    showButtons(found.override);
  }
  showButtons(null);
  const idle = whyNoOverride(about, parts) || whyNoBlock(about, {});
  const customers = parts.map((part) => el("li", {}, el("a", { href: customerLink(part) }, `All limits of ${showText(part)}`)));
  first.replaceChildren(state, meter, toolbar, result.node, problem, ...(idle ? [el("p", { class: "quiet" }, idle)] : []), numbers.node);
  first.after(section("More", el("ul", {}, ...customers, el("li", {}, el("a", { href: `${limitLink(about.limit)}` }, `All keys of ${target.name}`))),
    el("details", {}, el("summary", {}, "Details"), technical.node)));
  return poll(2000, load);
}
