// #/limits and #/limits/NAME: what each limit decides, and for whom.

// Up to so many limits are shown although they have no requests.
const IDLE_SHOWN = 20;
// Rows of a long list that are shown at first.
const ROWS = 100;

// Columns of a table of limits, without `more`.
function limitColumns(more = []) {
  const rate = (name, member) => ({ name, number: true, value: (row) => row[member], cell: (row) => showRate(row[member]) });
  const fixed = (column) => (more.length ? column : { ...column, value: undefined });
  return [
    { name: "Limit", value: (row) => row.limit, cell: (row) => ({ text: showText(row.limit, 60), href: limitLink(row.limit) }) },
    { name: "Mode", value: (row) => row.mode || "", cell: (row) => (row.mode === "shadow" ? "shadow: never refuses" : { text: showText(row.mode || "\u2013"), isMinor: true }) },
    ...more,
    rate("Asked", "asked_per_second"),
    rate("Refused", "refused_per_second"),
    rate("Would refuse", "would_refuse_per_second"),
    rate("Decided without store", "without_store_per_second"),
  ].map(fixed);
}

// The budget as the config has it.
const showBudget = (limit) => showText(limit.budget || "\u2013", 80);

function limitsScreen(main) {
  let all = [];
  let rates = new Map();
  let isFirst = true;
  const result = outcome();
  const filter = textField("Show limits whose name contains", "filter", addressQuery().get("name") || "", { type: "search", oninput: () => {
    keepInAddress("name", filter.lastElementChild.value);
    show();
  } });
  const idle = el("input", { type: "checkbox", name: "idle", checked: addressQuery().has("idle"), onchange: () => {
    keepInAddress("idle", idle.checked && "1");
    show();
  } });
  const hidden = el("p", { class: "quiet" });
  let isLoaded = false;
  const grid = table({ keepsOrder: true, caption: "Limits, and their rates per second", key: (row) => row.limit, empty: "No limit has such a name.", most: ROWS, columns: limitColumns([
    { name: "Budget", cell: showBudget },
    { name: "Per", value: (row) => row.key.join(", "), cell: (row) => showText(row.key.join(", ")) },
    { name: "Routes", number: true, value: (row) => row.routes.length, cell: (row) => showNumber(row.routes.length) },
  ]) });
  // Those that refuse are first, then those that are asked most.
  const order = (a, b) => ["refused_per_second", "would_refuse_per_second", "asked_per_second", "asked_total"].map((member) => (b[member] || 0) - (a[member] || 0)).find((found) => found !== 0) || 0;
  const show = () => {
    if (!isLoaded) return;
    const text = filter.lastElementChild.value;
    const found = all.map((limit) => ({ ...limit, ...rates.get(limit.limit) })).filter((limit) => containsText(limit.limit, text));
    const listed = found.filter((limit) => idle.checked || text !== "" || limit.asked_total > 0 || all.length <= IDLE_SHOWN);
    grid.update(listed.sort(order), isFirst);
    const left = found.length - listed.length;
    hidden.hidden = left === 0;
    setText(hidden, `${count(left, "limit")} without requests since the start ${left === 1 ? "is" : "are"} not shown.`);
  };
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Limits"), section(null,
    el("form", { class: "row", onsubmit: (event) => event.preventDefault() }, filter, el("label", { class: "check" }, idle, "Show limits without requests")), grid.node, hidden, result.node));
  const stops = [poll(15000, async (signal) => {
    try {
      all = (await getJson("/-/limits", { signal })).limits;
      isLoaded = true;
      result.node.replaceChildren();
      show();
    } catch (error) {
      if (error.name !== "AbortError") result.show("bad", error.message);
    }
  }), poll(5000, async (signal) => {
    rates = new Map((await getJson("/-/traffic", { signal })).limits.map((row) => [row.limit, row]));
    show();
    isFirst = isFirst && all.length === 0;
  })];
  return { close: () => stops.forEach((stop) => stop()) };
}

const HASH = /^([0-9a-f]{16}|[0-9a-f]{32})$/;

// Reads what somebody typed or copied for the part `name` of a key: a value, NAME=VALUE, or a hash as NAME#HASH or #HASH.
function readTyped(name, text) {
  const [, before, mark, rest] = /^([^=#]*)([=#])(.+)$/s.exec(text) || [];
  const isOwn = before !== undefined && before.toLowerCase() === name.toLowerCase();
  if (mark === "#" && (isOwn || before === "") && HASH.test(rest)) return { name, value: rest, isHash: true };
  return { name, value: mark === "=" && isOwn ? rest : text, isHash: false };
}

const typedPart = ({ name, value, isHash }) => (isHash ? `${name}#${value}` : `${name}=${encodeURIComponent(value)}`);

// Whether somebody may have typed the digits of a hash alone.
const maybeHash = ({ value, isHash }) => !isHash && HASH.test(value);

// The parts of a key, by hand: one field for each.
function keyFinder(limit) {
  const parts = limit.key.filter((part) => part !== "all");
  if (parts.length === 0) return section("One budget for all", el("p", {}, el("a", { href: keyLink(limit.limit, "all") }, "Numbers of this budget")));
  const result = outcome();
  const fields = parts.map((part, place) => textField(`${part} (value, or # and the hash of the log)`, `part${place}`, "", { required: true, maxlength: "8192" }));
  const find = (typed) => getJson(`/-/limits/${encodeURIComponent(limit.limit)}/state?${typed.map(({ value, isHash }) => `${isHash ? "hash" : "key"}=${encodeURIComponent(value)}`).join("&")}`);
  return section("Find a key", el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    let typed = fields.map((field, place) => readTyped(shownName(parts[place]), field.lastElementChild.value.trim()));
    try {
      // The gateway says what is no value of the key.
      const found = await find(typed);
      const hashed = typed.map((part) => ({ ...part, isHash: part.isHash || maybeHash(part) }));
      if (typed.some(maybeHash) && !hasUsed(found) && (await find(hashed).then(() => true, () => false))) typed = hashed;
      if (!hasLeft(result)) location.hash = keyLink(limit.limit, typed.map(typedPart).join(",")).slice(1);
    } catch (error) {
      result.show("bad", error.message);
    }
  } }, ...fields, el("button", { type: "submit" }, "Show")), result.node);
}

// What another size would have refused in the last ten minutes.
function whatIfForm(name) {
  const result = outcome();
  const fields = [textField("Burst", "burst", "", { type: "number", min: "1" }), textField("Rate", "rate", "", { placeholder: "5/s" })];
  return section("What if the limit had another size?", el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    const [burst, rate] = fields.map((field) => field.lastElementChild.value.trim());
    try {
      const found = await sendJson("POST", `/-/limits/${encodeURIComponent(name)}/what-if`, { ...(burst && { burst: Number(burst) }), ...(rate && { rate }) });
      const sizes = `${showText(found.now)} \u2192 ${showText(found.then)}`;
      if (!isNumber(found.refused_min)) result.show("warn", sizes, `No bound can be computed: ${showText(found.unknown_because, 400)}.`);
      else result.show("good", sizes, `In the last ${showDuration(1000 * found.seconds)}, ${showNumber(found.refused)} of ${count(found.decisions, "request")} were refused. It would have been ${found.refused_min === found.refused_max ? showNumber(found.refused_min) : `${showNumber(found.refused_min)} to ${showNumber(found.refused_max)}`}.`);
    } catch (error) {
      result.show("bad", error.message);
    }
  } }, ...fields, el("button", { type: "submit" }, "Compute")), result.node);
}

function limitScreen(main, [name]) {
  const result = outcome();
  const settings = facts("facts", [["budget", "Budget"], ["algorithm", "Algorithm"], ["key", "Per"], ["mode", "Mode"], ["cost", "Cost of a request"],
    ["missing", "Key part absent"], ["on_error", "Store unavailable"], ["routes", "Routes"]]);
  const rates = facts("cards large", [["asked", "Decisions per second"], ["refused", "Refused per second"], ["would", "Would refuse per second"], ["total", "Refused since the start"]]);
  const by = choice("Keys that", "by", [["refused", "were refused"], ["would_refuse", "would be refused (shadow)"], ["would_admit", "would be admitted (candidate)"], ["admitted", "were admitted"]], "refused");
  const window = choice("in the last", "window", [["10s", "10 seconds"], ["1m", "minute"], ["10m", "10 minutes"]], "1m");
  const query = () => `limit=${encodeURIComponent(name)}&by=${by.lastElementChild.value}&window=${window.lastElementChild.value}&n=50`;
  const top = topKeys({ caption: "Keys with most requests", query, onlyOne: true });
  const finder = el("div");
  const form = el("form", { class: "row", onsubmit: (event) => event.preventDefault(), onchange: () => top.load(undefined, true) }, by, window);
  const banner = el("div");
  main.replaceChildren(trail(["Limits", "#/limits"]), el("h1", { tabindex: "-1" }, `Limit ${showText(name, 80)}`), el("p", { class: "under" }), el("p", {}, el("a", { href: overridesLink(name) }, "Overrides and bans of this limit")), banner, result.node, rates.node,
    section(null, form, top.node), finder, whatIfForm(name), section("Settings", settings.node));
  const show = (event) => {
    follow(event);
    const row = event.limits.list.find((limit) => limit.limit === name);
    rates.set("asked", showRate(row ? row.asked_per_second : undefined));
    rates.set("refused", showRate(row ? row.refused_per_second : undefined), row ? showShare(row.refused_per_second, row.asked_per_second) : "");
    rates.set("would", showRate(row ? row.would_refuse_per_second : undefined));
    rates.set("total", showNumber(row ? row.refused_total : undefined));
  };
  let finderKey = "";
  const load = () => loadWithRetry(finder, async () => {
    const limit = await getJson(`/-/limits/${encodeURIComponent(name)}`);
    result.node.replaceChildren();
    settings.set("budget", showBudget(limit));
    setText(main.querySelector(".under"), `${showBudget(limit)} per ${showText(limit.key.join(", "), 120)}`);
    banner.replaceChildren(...(limit.mode !== "shadow" ? [] : [el("div", { class: "outcome warn" }, el("p", {}, limit.candidate_of ? `A candidate of ${showText(limit.candidate_of, 60)}: it refuses nobody. The list shows where the two differ.` : "In shadow mode: it refuses nobody. The list shows whom it would refuse."))]));
    settings.set("algorithm", showText(limit.algorithm));
    settings.set("key", showText(limit.key.join(", ")));
    // Nobody is refused there, so the question is who would be.
    if (!finderKey && (limit.mode === "shadow" || limit.candidate_of) && by.lastElementChild.value === "refused") {
      by.lastElementChild.value = "would_refuse";
      top.load(undefined, true);
    }
    settings.set("mode", limit.mode === "shadow" ? "shadow: decides and counts, never refuses" : showText(limit.mode));
    settings.set("cost", showText(limit.cost));
    settings.set("missing", showText(limit.missing));
    settings.set("on_error", showText(limit.on_error));
    settings.set("routes", limit.routes.length ? firstOf(limit.routes, 50, (route) => showText(route, 60)).join(", ") : "none");
    // What somebody is typing stays.
    if (finderKey !== limit.key.join()) finder.replaceChildren(keyFinder(limit));
    finderKey = limit.key.join();
  }, (error) => result.show("bad", error.message));
  load();
  const follow = followConfig(load);
  const stop = poll(3000, (signal) => top.load(signal));
  return { close: stop, update: show };
}
