// #/overrides and #/overrides?limit=NAME: what operators changed while the gateway runs, over all limits, and the keys that
// are banned now. Each row has the button that ends it.

const overridesLink = (limit) => `#/overrides?limit=${encodeURIComponent(limit)}`;
// Rows of a page; more are shown on demand.
const OVERRIDES_PAGE = 100;

// When an override was set, and with which token; empty if it was set without the admin API.
const describeSetting = ({ set_at: at, set_by: by }) => [at && showTime(at), by && `by ${showText(by, 60)}`].filter(Boolean).join(" ");

function overrideColumns(act) {
  return [
    { name: "Limit", kind: "wide", cell: (row) => ({ text: showText(row.limit, 60), href: limitLink(row.limit) }) },
    // A star is any value, so no key has a screen.
    { name: "Key", kind: "wide", cell: (row) => (row.key.split(",").some((part) => part.endsWith("=*")) ? showText(row.key) : { text: showText(row.key), href: keyLink(row.limit, row.key) }) },
    { name: "Override", cell: (row) => (row.blocked ? { text: "blocked", level: row.ended ? "warn" : "bad" } : budgetOf(row)) },
    { name: "Until", cell: (row) => (row.until ? `${showTime(row.until)}${row.ended ? " (ended)" : ""}` : "removed by hand") },
    { name: "Note", kind: "wide", cell: (row) => (row.note ? showText(row.note, 200) : "\u2013") },
    { name: "Set", cell: (row) => describeSetting(row) || "\u2013" },
    ...(session.allows("limits") ? [{ name: "Help", act, cell: (row) => {
      const text = row.blocked ? "Unblock" : "Remove";
      return { acts: [{ id: "remove", text, label: `${text}: ${showText(row.limit, 60)}, ${showText(row.key)}` }] };
    } }] : []),
  ];
}

function banColumns(act) {
  return [
    { name: "Limit", kind: "wide", cell: (row) => ({ text: showText(row.limit, 60), href: limitLink(row.limit) }) },
    { name: "Key", kind: "wide", cell: (row) => ({ text: showText(row.key), href: keyLink(row.limit, row.key) }) },
    { name: "Banned for", cell: (row) => showDuration(row.left_ms) },
    { name: "Until", cell: (row) => (row.until ? showTime(row.until) : "\u2013") },
    { name: "Ban", cell: (row) => `number ${showNumber(row.bans)}` },
    ...(session.allows("limits") ? [{ name: "Help", act, cell: (row) => ({ acts: [{ id: "lift", text: "Lift ban", label: `Lift ban: ${showText(row.limit, 60)}, ${showText(row.key)}` }] }) }] : []),
  ];
}

async function removeListed(result, row, refresh) {
  const shown = showText(row.key);
  const effect = row.ended ? "Its time has passed, so it has no effect any more."
    : row.blocked ? `The limit ${showText(row.limit, 60)} admits requests of ${shown} again, within its budget, ${wherever()}.`
      : `${shown} gets the budget of the limit ${showText(row.limit, 60)} again, ${wherever()}.`;
  const title = row.blocked ? "Unblock this key?" : "Remove the override of this key?";
  if (!(await confirmAction(title, effect, row.blocked ? "Unblock" : "Remove", "primary"))) return;
  await perform(result, "Remove", async () => (await request("DELETE", `/-/overrides?id=${encodeURIComponent(row.id)}`)).json(),
    ({ override }) => `Removed: ${shown} at ${showText(row.limit, 60)}. ${override ? `Now another entry applies: ${describeOverride(override)}, from the ${OVERRIDE_SOURCES[override.source] || "config"}.` : ""}`);
  refresh();
}

async function liftBan(result, row, refresh) {
  const about = await getJson(`/-/limits/${encodeURIComponent(row.limit)}`).catch(() => null);
  if (about && !hasLeft(result)) await resetKey(result, keyTarget(about, row.key.split(",").filter((part) => part !== "all")), refresh);
}

// The bans that are known, and what the list lacks.
function describeBanGaps(found) {
  const gaps = [found.gateways > 1 ? "The store cannot list bans. These are among the keys that this gateway refused last, and among the last 100 refusals of each other gateway." : "The store cannot list bans. These are among the keys that this gateway refused last."];
  if (found.left_out) gaps.push(`${count(found.left_out, "refused key")} more were not looked up.`);
  if (found.limits_hidden) gaps.push(`${count(found.limits_hidden, "limit")} ${found.limits_hidden === 1 ? "is" : "are"} left out, because the config hides the keys from your role.`);
  if (found.store_fault) gaps.push(`The limit store did not answer about all keys (${showText(found.store_fault).replaceAll("_", " ")}).`);
  return gaps.join(" ");
}

function overridesScreen(main) {
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Overrides"));
  if (!session.allows("keys")) {
    main.append(section(null, needsRole("keys", "Seeing overrides and bans of keys")));
    return { close() {} };
  }
  const result = outcome();
  const problem = outcome();
  let pages = 1;
  const select = el("select", { name: "limit", onchange: () => {
    keepInAddress("limit", select.value);
    pages = 1;
    load();
  } });
  const wanted = addressQuery().get("limit") || "";
  select.append(el("option", { value: "" }, "All limits"), ...(wanted ? [el("option", { value: wanted, selected: true }, showText(wanted, 60))] : []));
  const refresh = () => load();
  const grid = table({ caption: "Live overrides and blocks", key: (row) => `${row.limit} ${row.key} ${row.until} ${row.text}`, most: 1e6,
    empty: "There are none: every key has the budget that the config gives it.", columns: overrideColumns((row) => removeListed(result, row, refresh)) });
  const moreText = el("span");
  const more = el("p", { class: "quiet", hidden: true }, moreText, " ", el("button", { type: "button", onclick: () => {
    pages += 1;
    load();
  } }, "Show more"));
  const note = el("p", { class: "quiet" });
  const bans = table({ caption: "Bans", key: (row) => `${row.limit} ${row.key}`, most: 100, empty: "No key is banned, as far as this gateway knows.", columns: banColumns((row) => liftBan(result, row, refresh)) });
  const banNote = el("p", { class: "quiet" });
  main.append(el("p", { class: "under" }, "What operators changed while the gateway runs, and the keys that are banned now"), problem.node,
    section(null, el("form", { class: "row", onsubmit: (event) => event.preventDefault() }, el("label", {}, "Show", select)), result.node, grid.node, more, note), section(null, bans.node, banNote));
  const limitQuery = () => (select.value ? `limit=${encodeURIComponent(select.value)}` : "");
  // All pages that are shown.
  async function loadPages(signal) {
    let [list, cursor] = [[], ""];
    for (let page = 0; page < pages; page += 1) {
      const found = await getJson(`/-/overrides?${[limitQuery(), `n=${OVERRIDES_PAGE}`, cursor].filter(Boolean).join("&")}`, { signal });
      list = list.concat(found.overrides);
      if (!found.next || page === pages - 1) return { ...found, list };
      cursor = `cursor=${encodeURIComponent(found.next)}`;
    }
    return null;
  }
  async function load(signal) {
    const asked = select.value;
    try {
      const [found, banned] = await Promise.all([loadPages(signal), getJson(`/-/bans${limitQuery() && `?${limitQuery()}`}`, { signal })]);
      // Another limit was chosen meanwhile.
      if (asked !== select.value) return;
      problem.node.replaceChildren();
      if (!asked) showLimits(found.limits);
      grid.update(found.list, true);
      more.hidden = !found.next;
      setText(moreText, `The first ${showNumber(found.list.length)} of ${showNumber(found.total)} are shown.`);
      setText(note, `They ${isShared() ? "are kept in Redis and apply on all gateways that share it" : "apply on this gateway"}, beside the overrides of the config.`);
      bans.update(banned.bans, true);
      setText(banNote, describeBanGaps(banned));
    } catch (error) {
      if (error.name !== "AbortError") problem.show("bad", error.message);
    }
  }
  // The limits with overrides. The choice stays the same elements while they say the same, so that it stays open.
  let shownLimits = "";
  function showLimits(limits) {
    const key = JSON.stringify(limits);
    if (key === shownLimits) return;
    shownLimits = key;
    const all = limits.reduce((sum, one) => sum + one.overrides, 0);
    select.replaceChildren(el("option", { value: "" }, `All limits (${showNumber(all)})`), ...limits.map((one) => el("option", { value: one.limit }, `${showText(one.limit, 60)} (${showNumber(one.overrides)})`)));
  }
  // Many pages are loaded anew only after an action.
  return { close: poll(5000, async (signal) => {
    if (pages === 1) await load(signal);
  }) };
}
