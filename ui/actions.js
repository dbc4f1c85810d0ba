// What operators do about a key: reset it, block it, give it another size, refund units. Each action asks once, in words.

const DURATIONS = [["15m", "15 minutes"], ["1h", "1 hour"], ["8h", "8 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"], ["", "until somebody removes it"]];
const UNIT_MS = { m: 60000, h: 3600000, d: 86400000 };
const KEEPERS = { redis: "It is kept in Redis, for all gateways.", state_file: "It is kept in the state file of this gateway.", memory: "It is kept in the memory of this gateway until it stops." };

const isShared = () => Boolean(live.event && live.event.store.shared);
const wherever = () => (isShared() ? "on all gateways that share the store" : "on this gateway");

// A key of a limit: `about` is the limit, `parts` are those of the screen of a key.
function keyTarget(about, parts) {
  const page = `/-/limits/${encodeURIComponent(about.limit)}`;
  const query = keyQuery(about, parts);
  return { about, parts, page, name: showText(about.limit, 80), shown: parts.length ? parts.map((part) => showText(part)).join(", ") : "all requests",
    state: `${page}/state?${query}`, override: `${page}/override?${query}` };
}

// A question belongs to its screen: it is not asked once the operator has left.
const hasLeft = (result) => Boolean(result.node && !result.node.isConnected);

// Runs an action and shows what it did; `done(answer)` is its text.
async function perform(result, action, work, done) {
  try {
    result.show("good", done(await work()));
    return true;
  } catch (error) {
    result.show("bad", `${action}: ${error.message}`);
    return false;
  }
}

// What a reset leaves as it is. `override`: that of the key, if any.
function resetEffect({ about, parts }, override) {
  const block = override && override.blocked ? `The key stays ${describeOverride(override)}: only an end of the block admits its requests.` : "";
  const others = keyNames(about, parts).length > keyNames(about, []).length ? "The shared budget stays as it is."
    : about.tier_of ? "It counts IPv6 clients in networks of other sizes too. These are not reset, and may still refuse the next request."
      : block ? "" : `The next request of this key has the full budget${about.ban ? ", and a ban of it ends" : ""}.`;
  return [others, block].filter(Boolean).join(" ");
}

async function resetKey(result, target, refresh) {
  const { name, shown, state } = target;
  const { override } = await getJson(state).catch(() => ({}));
  if (hasLeft(result)) return;
  const effect = resetEffect(target, override);
  if (!(await confirmAction("Reset this key?", `The limit ${name} forgets what ${shown} has used. ${effect}`, "Reset", "primary"))) return;
  await perform(result, "Reset", async () => (await request("DELETE", state)).json(),
    (answer) => (answer.existed === false ? `Nothing to reset: ${name} had counted nothing of ${shown}. ${override ? effect : "Is the key right?"}` : `Reset: ${name} forgot ${shown}. ${effect}`));
  refresh();
}

async function refundKey(result, { about, parts, page, name, shown }, refresh) {
  const units = textField("Units", "units", "1", { type: "number", min: "1", max: "1000000000", required: true });
  const text = el("p", {}, `${shown} gets back units of the limit ${name}, at most what it has used.`);
  if (!(await confirmAction("Refund units to this key?", [text, el("div", { class: "stack" }, units)], "Refund", "primary"))) return;
  const cost = Number(units.lastElementChild.value);
  await perform(result, "Refund", () => sendJson("POST", `${page}/refund`, { key: keyBody(about, parts), cost }),
    (answer) => (answer.applied ? `Refunded: ${count(answer.units, "unit")}${answer.units < cost ? `, which is all that ${shown} had used` : ""}.` : `Nothing was refunded: ${showText(answer.reason).replaceAll("_", " ")}.`));
  refresh();
}

async function removeOverride(result, { override, name, shown }, refresh) {
  if (!(await confirmAction("Remove the override of this key?", `${shown} gets the budget of the limit ${name} again, ${wherever()}.`, "Remove", "primary"))) return;
  await perform(result, "Remove", async () => (await request("DELETE", override)).json(), (answer) => (answer.existed ? `Removed: ${shown} has the budget of ${name} again.` : `${shown} had no live override.`));
  refresh();
}

// How many requests of the last minute the change is about, where that is known: the list has the most frequent keys.
async function recentRequests(about, key) {
  const { keys } = await getJson(`/-/top?limit=${encodeURIComponent(about.limit)}&by=admitted&window=1m&n=100`);
  const own = keys.find((one) => one.key === key);
  return own ? own.count_max : 0;
}

// Whether files of the config can be edited here.
const canEditFiles = async () => session.allows("edit") && getJson("/-/config/files").then(({ editable }) => editable, () => false);

// Blocks a key, or gives it another size: by a live override, which applies at once and can end by itself, or by an edit of
// the file that has the limit.
async function changeBudget(result, target, refresh, blocks) {
  const { about, parts, name, shown, override } = target;
  const word = blocks ? "Block" : "Override";
  const size = blocks ? null : textField("Size, such as 100/min, 0 or unlimited", "size", "", { required: true, maxlength: "60" });
  const time = choice("For", "for", DURATIONS, blocks ? "1h" : "1d");
  const note = textField("Note, such as the number of a ticket", "note", "", { maxlength: "200" });
  const place = (await canEditFiles()) ? choice("Kept as", "place", [["live", `live override: at once, ${wherever()}`], ["file", "edit of the config file: after a look at the change"]], "live") : null;
  const now = await getJson(target.state).catch(() => ({}));
  if (hasLeft(result)) return;
  const recent = el("p", { class: "quiet" });
  if (blocks) recentRequests(about, now.key).then((found) => setText(recent, found ? `In the last minute, the limit admitted about ${count(found, "request")} of this key.` : ""), () => {});
  const text = el("p", {}, blocks ? `The limit ${name} refuses every request of ${shown}.` : `The limit ${name} gives ${shown} a budget of its own. What the key has used counts already; reset it too if it shall start anew.`);
  const replaced = now.override && now.override.source === "live" ? el("p", {}, `It replaces the override ${describeOverride(now.override)}, which does not return.`) : null;
  if (!(await confirmAction(`${word} this key?`, [text, ...(replaced ? [replaced] : []), recent, el("div", { class: "stack" }, size, time, note, place)], word))) return;
  const [amount, length, reason] = [blocks ? "0" : size.lastElementChild.value.trim(), time.lastElementChild.value, note.lastElementChild.value.trim()];
  if (place && place.lastElementChild.value === "file") {
    await addOverride(result, about.limit, parts, amount, { length, reason });
  } else {
    const leading = about.algorithm === "concurrency" ? "in_flight" : "rate";
    await perform(result, word, async () => {
      const idle = amount === "0" ? whyNoBlock(about, (await getJson("/-/config")).config.limit) : null;
      if (idle) throw new Error(idle);
      const body = { ...(blocks ? { block: true } : { [leading]: amount }), ...(length && { for: length }), ...(reason && { note: reason }) };
      return sendJson("PUT", override, body);
    }, (answer) => `${shown} at ${name}: ${answer.override ? describeOverride(answer.override) : "changed"}. ${KEEPERS[answer.kept_in] || ""}${answer.applied ? "" : " It applies within seconds."}${answer.replaced ? ` Before: ${describeOverride(answer.replaced)}.` : ""}`);
  }
  refresh();
}

// The budget of an override without its end.
const budgetOf = ({ text }) => showText(text, 80).replace(/ until .*$/, "");

// An override in words, such as `blocked until 12:30:00 (ticket 17)`.
function describeOverride({ text, until, note }) {
  return `${budgetOf({ text })}${until ? ` until ${showTime(until)}` : ""}${note ? ` (${showText(note, 200)})` : ""}`;
}

// The buttons about a key, for this login. `override`: that of the key, if any.
function keyButtons(target, override) {
  const { about, parts } = target;
  if (!session.allows("limits")) return [];
  const why = whyNoOverride(about, parts);
  const buttons = [{ id: "reset", text: "Reset key", kind: "primary" }];
  if (override && override.source === "live") buttons.push({ id: "remove", text: override.blocked ? "Unblock" : "Remove override" });
  if (!why && !whyNoBlock(about, {}) && !(override && override.blocked)) buttons.push({ id: "block", text: "Block key", kind: "risk" });
  if (!why) buttons.push({ id: "override", text: "Override" });
  buttons.push({ id: "refund", text: "Refund" });
  return buttons;
}

const KEY_ACTIONS = {
  reset: resetKey, refund: refundKey, remove: removeOverride,
  block: (result, target, refresh) => changeBudget(result, target, refresh, true),
  override: (result, target, refresh) => changeBudget(result, target, refresh, false),
};
