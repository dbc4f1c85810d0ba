// #/customers: why was a customer refused? #/customers/PART shows every limit that one value meets; PART has the form of a
// key part, NAME=VALUE or NAME#HASH. #/customers/request/ID shows one refused request.

const customerLink = (part) => `#/customers/${encodeURIComponent(part)}`;
const requestLink = (id) => `#/customers/request/${encodeURIComponent(id)}`;

const REQUEST = "request";
const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:.]+)$/i;
const REQUEST_ID = /^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/i;

function describeSource(source) {
  if (source === "ip") return "Client address";
  const [kind, ...name] = source.split(":");
  return name.length ? `${showText(name.join(":"), 60)} (${showText(kind, 20)})` : showText(source, 80);
}

// The sources that keys of limits have.
async function listSources() {
  const { limits } = await getJson("/-/limits");
  const names = limits.flatMap(({ key, fair }) => [...key, ...(fair ? fair.key : [])]).flatMap((part) => part.split(" | ")).filter((name) => name !== "all");
  const found = [...new Set(names.map((name) => (/^ip[/\d]/.test(name) ? "ip" : name)))];
  return found.sort((a, b) => (a === "ip" ? -1 : b === "ip" ? 1 : a.localeCompare(b)));
}

// Finds a customer or a refused request by what the customer says.
function customerFinder() {
  if (!session.allows("keys")) return section("Find a customer", needsRole("keys", "Seeing what customers used"));
  let isChosen = false;
  const source = choice("Known by", "source", [[REQUEST, "Request id"]], REQUEST);
  const select = source.lastElementChild;
  const result = outcome();
  select.addEventListener("change", () => { isChosen = true; });
  const value = textField("What the customer sent: an address, an API key, or the request id of the response", "value", "", { required: true, maxlength: "2000", oninput: () => {
    const text = value.lastElementChild.value.trim();
    const guess = ADDRESS.test(text) ? "ip" : REQUEST_ID.test(text) ? REQUEST : null;
    if (guess && !isChosen && Array.from(select.options).some((option) => option.value === guess)) select.value = guess;
  } });
  value.className = "grow";
  loadWithRetry(select, async () => {
    const sources = await listSources();
    select.prepend(...sources.map((name) => el("option", { value: name }, describeSource(name))));
    if (!isChosen) select.selectedIndex = 0;
    result.node.replaceChildren();
  }, (error) => result.show("warn", `Customers can be found by a request id only: ${error.message}`));
  const find = ({ name, value: text, isHash }) => getJson(`/-/customers?source=${encodeURIComponent(name)}&${isHash ? "hash" : "value"}=${encodeURIComponent(text)}&n=1`);
  return section("Why was a customer refused?", el("form", { class: "row", role: "search", onsubmit: async (event) => {
    event.preventDefault();
    const text = value.lastElementChild.value.trim();
    if (select.value === REQUEST) {
      location.hash = requestLink(text);
      return;
    }
    let typed = readTyped(select.value, text);
    try {
      // The gateway says what is no value of the source.
      const found = await find(typed);
      const hashed = { ...typed, isHash: true };
      if (maybeHash(typed) && !found.limits.some(hasUsed) && (await find(hashed).then(() => true, () => false))) typed = hashed;
      if (!hasLeft(result)) location.hash = customerLink(typedPart(typed));
    } catch (error) {
      result.show("bad", error.message);
    }
  } }, value, source, el("button", { type: "submit", class: "primary" }, "Find")), result.node);
}

// Why a limit refused a request, in words.
function tellRefusal({ time, route, status, check }, budgets) {
  const { limit, key, reason, policy, cost, remaining, retry_after_ms: wait, mode, override } = check;
  const who = key && key !== "all" ? showText(key) : "this limit's one budget for all";
  const size = override ? ` (with an override: ${showNumber(policy.quota)} at most)` : budgets.has(limit) ? ` (${showText(budgets.get(limit), 80)})` : "";
  const name = `the limit ${showText(limit, 60)}${size}`;
  const why = reason === "banned" ? `${who} was banned by ${name}` : reason === "blocked" ? `${who} was blocked by an override of ${name}`
    : reason === "exhausted" ? `${who} had used up ${name}: ${showNumber(remaining)} left, and the request cost ${showNumber(cost)}` : `${name} refused ${who} (${showText(reason).replaceAll("_", " ")})`;
  const later = isNumber(wait) && wait > 0 ? ` It would have passed ${showDuration(wait)} later.` : "";
  return `${showTime(time)}, route ${showText(route, 60)}: ${mode === "shadow" ? "a limit in shadow mode would have refused it: " : `refused with status ${showNumber(status)}. `}${why}.${later}`;
}

function customersScreen(main, parts) {
  if (parts.length === 0 || !session.allows("keys")) {
    main.replaceChildren(el("h1", { tabindex: "-1" }, "Customers"), customerFinder(), section("How to use this",
      el("ul", {}, el("li", {}, "A refused response shows a request id: on the error page, or as request_id in its JSON. It leads to that very request, the limit that refused it, and the key."),
        el("li", {}, "An address or an API key shows everything that the limits know about the customer: what is used and left, bans, overrides and the last refusals."),
        el("li", {}, "There you can reset what the customer has used, lift or set a block, or give more for some time."))));
    return { close() {} };
  }
  return parts[0] === REQUEST && parts.length === 2 ? requestScreen(main, parts[1]) : customerScreen(main, parts.join("/"));
}

function requestScreen(main, id) {
  const result = outcome();
  const story = section(null, el("p", { class: "quiet" }, "Loading\u2026"));
  main.replaceChildren(trail(["Customers", "#/customers"]), el("h1", { tabindex: "-1" }, `Request ${showText(id)}`), result.node, story, customerFinder());
  const loadBudgets = () => getJson("/-/limits").then(({ limits }) => new Map(limits.map(({ limit, budget }) => [limit, budget])), () => new Map());
  loadWithRetry(story, async () => {
    const [{ refusals, gateways }, known] = await Promise.all([getJson(`/-/refusals?request_id=${encodeURIComponent(id)}`), loadBudgets()]);
    const rows = checksOf(refusals);
    result.node.replaceChildren();
    if (rows.length === 0) {
      story.replaceChildren(el("p", { class: "story" }, "No such request is among the last refusals."),
        el("ul", {}, el("li", {}, "It may be too old, or it was not refused by a limit. The access log has every request: search it for the id."),
          isShared() ? el("li", {}, gateways > 1 ? "Another gateway may have refused it more than a hundred refusals ago. Look on its own dashboard: " : "The other gateways could not be asked. Look on their own dashboards: ", el("a", { href: "#/gateways" }, "the gateways that share the store"), ".") : null,
          el("li", {}, "Search for the address or the API key of the customer instead.")));
      return;
    }
    const grid = refusalTable("Limits that refused this request", "", [REFUSED_BY]);
    grid.update(rows, true);
    const keys = [...new Set(rows.flatMap(({ check }) => (check.key || "").split(",")).filter((part) => /[=#]/.test(part)))];
    story.replaceChildren(...rows.map((row) => el("p", { class: "story" }, tellRefusal(row, known))),
      el("ul", {}, ...rows.filter(({ check }) => check.key).map(({ check }) => el("li", {}, el("a", { href: keyLink(check.limit, check.key) }, `Help: the key ${showText(check.key)} of the limit ${showText(check.limit, 60)}`))),
        ...keys.map((part) => el("li", {}, el("a", { href: customerLink(part) }, `All limits of ${showText(part)}`)))), grid.node);
  }, (error) => {
    story.replaceChildren();
    result.show("bad", error.message);
  });
  return { close() {} };
}

// The verdict about a customer, from what its limits say: a level, a sentence, and what refuses now.
function judgeCustomer(found) {
  if (found.store_fault) return { level: "bad", text: `The limit store does not respond (${showText(found.store_fault).replaceAll("_", " ")}), so nobody knows what is left.`, now: [] };
  const now = found.limits.filter((row) => row.admitted === false && row.mode === "enforce");
  if (now.length) {
    const limits = [...new Set(now.map((row) => showText(row.limit, 60)))];
    return { level: "warn", text: `${limits.length === 1 ? `The limit ${limits[0]} refuses` : `The limits ${limits.slice(0, 4).join(", ")}${limits.length > 4 ? ", \u2026" : ""} refuse`} this customer now.`, now };
  }
  const last = checksOf(found.refusals).find(({ check }) => check.mode === "enforce");
  const before = last ? ` The last refusal was ${showAgo(last.time)}, by the limit ${showText(last.check.limit, 60)}.` : ` ${describeNoRefusal(found.gateways)}`;
  const open = [...new Set(found.limits.filter((row) => row.rate_not_known && row.mode === "enforce").map((row) => showText(row.limit, 60)))];
  const unknown = open.length ? ` Not known for ${open.slice(0, 4).join(", ")}${open.length > 4 ? ", \u2026" : ""}: requests state their rate.` : "";
  return { level: "good", text: `No limit ${unknown ? "is known to refuse" : "refuses"} this customer now.${unknown}${before}`, now };
}

// How often the key was refused. Other limits than those that refuse count what was over them.
function describeRefused({ outcome: counted, refused_min: least, refused_max: most }) {
  const number = most === least ? showNumber(least) : `${showNumber(least)} to ${showNumber(most)}`;
  if (most === 0 || counted === "refused") return number;
  return counted === "would_refuse" ? `would be: ${number}` : `none, over it: ${number}`;
}

function customerColumns(part, act) {
  const left = (row) => isNumber(row.remaining) && row.policy;
  return [
    { name: "Limit", cell: (row) => ({ text: showText(row.limit, 60), href: keyLink(row.limit, row.key) }) },
    { name: "Key", cell: (row) => showText(row.key.split(",").filter((one) => one !== part).join(", ") || "\u2013") },
    { name: "Now", kind: "wide", cell: (row) => (row.admitted === undefined ? "not known" : row.admitted ? { text: "admitted", level: "good" } : { text: describeNext(row).replace("is refused", row.mode === "shadow" ? "would be refused" : "refused"), level: row.mode === "shadow" ? "warn" : "bad" }) },
    { name: "Used", number: true, cell: (row) => (left(row) ? { text: `${showNumber(row.used)} of ${showNumber(row.policy.quota)}`, share: row.used / Math.max(1, row.policy.quota) } : "\u2013") },
    { name: "Left", number: true, cell: (row) => (left(row) ? showNumber(row.remaining) : "\u2013") },
    { name: "Refused here in 10 min", number: true, cell: describeRefused },
    { name: "Override", cell: (row) => (row.override ? describeOverride(row.override) : "\u2013") },
    ...(session.allows("limits") ? [{ name: "Help", act, cell: (row) => ({ acts: keyButtons(keyTarget(row.about, row.parts), row.override).filter(({ id }) => id !== "refund")
      .map(({ id, text, kind }) => ({ id, kind: kind === "primary" ? null : kind, text: text.replace(" key", ""), label: `${text.replace(" key", "")}: ${showText(row.limit, 60)}, ${showText(row.key)}` })) }) }] : []),
  ];
}

function customerScreen(main, part) {
  const { name, value, isHash } = splitPart(part);
  const query = `source=${encodeURIComponent(name)}&${isHash ? `hash=${encodeURIComponent(value)}` : `literal=${encodeShown(value || "")}`}`;
  const result = outcome();
  const problem = outcome();
  const title = el("h2");
  const list = el("ul");
  const note = el("p", { class: "quiet" });
  const verdict = el("section", { class: "verdict", "aria-label": "State of the customer", hidden: true }, title, list);
  const about = new Map();
  let rows = [];
  const load = async (signal) => {
    try {
      const found = await getJson(`/-/customers?${query}`, { signal });
      // A reload may bring a limit.
      if (found.limits.some((row) => !about.has(row.limit))) {
        for (const limit of (await getJson("/-/limits", { signal })).limits) about.set(limit.limit, limit);
      }
      problem.node.replaceChildren();
      show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.show("bad", error.message);
      setText(loading, "Nothing is known yet.");
    }
  };
  const loading = el("p", { class: "quiet" }, "Loading\u2026");
  const refresh = () => load();
  const grid = table({ caption: "What the limits know", key: (row) => `${row.limit} ${row.key}`, empty: "No limit has counted this customer yet.", most: 30,
    columns: customerColumns(part, (row, id) => KEY_ACTIONS[id](result, keyTarget(row.about, row.parts), refresh)) });
  const refused = refusalTable("Last refusals", "None among the last refusals.", [REFUSED_BY]);
  const resetAll = el("button", { type: "button", class: "primary", id: "reset-all", disabled: true, onclick: async () => {
    const used = rows.filter((row) => !whyUnknown(row.about, row.parts));
    const names = [...new Set(used.map((row) => showText(row.limit, 60)))].join(", ");
    const blocked = [...new Set(used.filter(({ override }) => override && override.blocked).map((row) => showText(row.limit, 60)))];
    const effect = blocked.length ? `Bans end. Blocks stay: ${blocked.join(", ")}. At the other limits, the next requests have full budgets.` : "The next requests have full budgets, and bans end.";
    if (!(await confirmAction("Reset everything that this customer has used?", `${count(used.length, "key")} of these limits are reset: ${names}. ${effect}`, "Reset all", "primary"))) return;
    await perform(result, "Reset", async () => {
      for (const row of used) await request("DELETE", keyTarget(row.about, row.parts).state);
    }, () => `Reset: ${count(used.length, "key")} of ${showText(part)}.`);
    refresh();
  } }, "Reset all");
  function show(found) {
    // What refuses is first, then what was used; the order stays while the screen is open.
    const weight = (row) => (row.admitted === false ? 2 : 0) + (row.used > 0 || row.refused_max > 0 || row.override ? 1 : 0);
    rows = found.limits.filter((row) => about.has(row.limit)).sort((a, b) => weight(b) - weight(a)).map((row) => ({ ...row, about: about.get(row.limit), parts: row.key.split(",").filter((one) => one !== "all") }));
    const judged = judgeCustomer(found);
    verdict.hidden = false;
    [loading.hidden, helped.hidden, refusedSection.hidden] = [true, false, false];
    verdict.className = `verdict ${judged.level}`;
    const key = JSON.stringify([judged.level, judged.text]);
    if (verdict.shown !== key) {
      verdict.shown = key;
      title.replaceChildren(icon(judged.level), judged.text);
    }
    list.replaceChildren(...judged.now.slice(0, 10).map((row) => el("li", {}, el("a", { href: keyLink(row.limit, row.key) }, `${showText(row.limit, 60)}, ${showText(row.key)}`), `: the next request ${describeNext(row)}.`)));
    list.hidden = judged.now.length === 0;
    grid.update(rows);
    refused.update(checksOf(found.refusals), true);
    const gaps = [];
    const hashes = hashNote(found.keys_comparable);
    if (hashes) gaps.push(hashes);
    if (found.incomplete_total) gaps.push(`Of ${found.incomplete.slice(0, 5).map((one) => showText(one, 60)).join(", ")}${found.incomplete_total > 5 ? ", \u2026" : ""}, which have further key parts, only keys of the last ten minutes are known here.`);
    if (found.limits_hidden) gaps.push(`${count(found.limits_hidden, "limit")} are left out, because the config hides their keys from your role.`);
    if (found.limits_left_out) gaps.push(`${count(found.limits_left_out, "limit")} more are not shown.`);
    setText(note, gaps.join(" "));
    resetAll.disabled = rows.length === 0;
  }
  const helped = section(null, el("div", { class: "row" }, ...withRole("limits", "Helping this customer", resetAll)), result.node, grid.node, note);
  const refusedSection = section(null, refused.node);
  [helped.hidden, refusedSection.hidden] = [true, true];
  main.replaceChildren(trail(["Customers", "#/customers"]), el("h1", { tabindex: "-1" }, `Customer ${showText(isHash ? `#${value}` : decodeShown(value || part))}`), el("p", { class: "under" }, `${describeSource(name)}, as limits count it`), problem.node, verdict,
    loading, helped, refusedSection, customerFinder());
  return { close: poll(3000, load) };
}
