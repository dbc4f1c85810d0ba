// Whether a key can be blocked or get another budget, and the override as an edit of the file that has the limit: checked,
// shown, confirmed, and in the history.

// The key part of a wider tier, whose values an entry writes with the size of the network.
function tierPart(about) {
  if (!about.tier_of || about.tier_of === about.limit) return null;
  const prefix = about.limit.slice(about.tier_of.length + 1);
  return { prefix, name: prefix === "64" ? "ip" : `ip/32/${prefix}` };
}

// Why no entry means this key alone; null if one does.
function whyNoOverride(about, parts) {
  if (about.fair) return `Tenants share each budget of this limit, and an override would change it for all of them. Change fair.weights of the limit to give a tenant more or less.`;
  const why = whyUnknown(about, parts);
  const tier = why ? null : tierPart(about);
  if (!tier) return why;
  const { value, isHash } = splitPart(parts[keyNames(about, parts).indexOf(tier.name)] || "");
  return !isHash && /^[0-9a-f:.]+$/.test(value || "") ? null : "Only the address names this network, and the config does not show it.";
}

// Why a block of a key would refuse nothing; null if it refuses. `limits`: those of the config.
function whyNoBlock(about, limits) {
  if (about.candidate_of) return "A candidate refuses nothing, so a block has no effect.";
  if (about.mode === "shadow") return "A limit in shadow mode refuses nothing, so a block has no effect.";
  if (about.over !== "refuse" && about.over !== "delay") return `This limit forwards requests that are over it (over = "${showText(about.over)}"), blocked ones too.`;
  const next = Object.entries(limits).find(([, { after }]) => after && after.value === (about.tier_of || about.limit));
  return next ? `The limit ${showText(next[0], 80)} comes after this one and decides the requests that it blocks. Block the key there.` : null;
}

// The entry as TOML; `parts` are those of the screen of a key, and `more` are options beside the size.
function overrideEntry(about, parts, option, size, more = []) {
  const why = whyNoOverride(about, parts);
  if (why) throw new Error(why);
  const left = [...parts];
  const tier = tierPart(about);
  const values = about.key.map((name) => {
    if (name === "all") return '"*"';
    const { value, isHash } = splitPart(left.shift());
    if (tier && name === tier.name) return JSON.stringify(`${value}/${tier.prefix}`);
    return isHash ? `{ hash = ${JSON.stringify(value)} }` : `{ percent = ${JSON.stringify(encodeShown(value))} }`;
  });
  const amount = /^\d+$/.test(size) ? size : JSON.stringify(size);
  const options = [`${option} = ${amount}`, ...more.map(([name, value]) => `${name} = ${JSON.stringify(value)}`)];
  return `{ key = [${values.join(", ")}], ${options.join(", ")} }`;
}

// The text of a file with the entry. `line`: that of `overrides` if it exists, else of the option `leading`.
function withOverride(text, line, leading, exists, entry) {
  const lines = text.split("\n");
  const at = lines[line - 1] || "";
  const places = at.match(exists ? /(^|[\s{,."'])overrides["']?\s*=\s*\[/g : new RegExp(`^\\s*["']?${leading}["']?\\s*=`, "g")) || [];
  if (places.length !== 1) throw new Error(`Line ${line} of the file is not the ${exists ? "overrides" : leading} of this limit alone. Write the entry by hand.`);
  if (exists) lines[line - 1] = at.replace(places[0], () => `${places[0]}${entry}, `);
  else lines.splice(line - 1, 0, `overrides = [${entry}]`);
  return lines.join("\n");
}

// Finds the file and line of an option; `origin` is FILE:LINE, and files are listed relative to the main one.
async function findOrigin(origin) {
  const [, path, line] = /^(.*):(\d+)$/.exec(origin) || [];
  const { files } = await getJson("/-/config/files");
  const found = files.filter(({ name }) => path && (path === name || path.endsWith(`/${name}`))).sort((a, b) => b.name.length - a.name.length);
  if (!found.length) throw new Error("The file of this limit is not among the files of the config.");
  return { name: found[0].name, line: Number(line) };
}

// The time when a duration of DURATIONS has passed, in whole seconds.
const endOf = (length) => new Date(Date.now() + parseInt(length, 10) * UNIT_MS[length.slice(-1)]).toISOString().replace(/\.\d+Z$/, "Z");

async function addOverride(result, limit, parts, size, { length = "", reason = "" } = {}) {
  let entry = "";
  try {
    const about = await getJson(`/-/limits/${encodeURIComponent(limit)}`);
    const limits = (await getJson("/-/config")).config.limit;
    const section = about.tier_of || limit;
    const options = limits[section];
    const leading = options.in_flight ? "in_flight" : "rate";
    entry = overrideEntry(about, parts, leading, size, [...(length ? [["until", endOf(length)]] : []), ...(reason ? [["note", reason]] : [])]);
    const idle = size === "0" ? whyNoBlock(about, limits) : null;
    if (idle) throw new Error(idle);
    const { pinned } = await getJson("/-/status");
    if (isNumber(pinned)) throw new Error(`Generation ${pinned} is active in place of the files, after a rollback. An edit would activate the other config that the files have. Correct the files first, or choose a live override.`);
    const { name, line } = await findOrigin((options.overrides || options[leading]).origin);
    const path = `/-/config/files/${encodeURIComponent(name)}`;
    const file = await request("GET", path);
    const body = withOverride(await file.text(), line, leading, Boolean(options.overrides), entry);
    const put = async (query) => (await request("PUT", path + query, { body, headers: { "content-type": "application/toml", "if-match": file.headers.get("etag") } })).json();
    const changes = (await put("?dry_run=1")).changes || [];
    if (!changes.length) throw new Error("The file would not change.");
    const lines = showDiff(changes);
    if (changes.some((one) => one.kind !== "limit" || one.name !== section || one.option !== "overrides")) throw new Error(`The files differ from the active config, so an edit would change more than this key: ${lines.slice(0, 5).join("; ")}. Reload them first.`);
    if (hasLeft(result)) return;
    const shown = parts.length ? parts.map((part) => showText(part)).join(", ") : "all requests";
    const effect = `${size === "0" ? `The limit ${showText(limit, 80)} refuses every request of ${shown}` : `The limit ${showText(limit, 80)} gives ${shown} the budget ${showText(size, 60)}`}${length ? ` until ${showTime(endOf(length))}` : ""}, on this gateway. The file ${showText(name, 200)} is changed and applied at once.`;
    const details = el("details", {}, el("summary", {}, "The change as text"), el("pre", {}, lines.join("\n")));
    if (!(await confirmAction(size === "0" ? "Block this key?" : "Override this key?", [el("p", {}, effect), details], "Save and apply"))) return;
    const { generation } = await put("");
    result.show("good", `Applied: generation ${generation} is active. To undo, open Config → History.`);
  } catch (error) {
    const { diagnostics } = error.problem || {};
    result.show("bad", error.message, ...(diagnostics ? [diagnosticList(diagnostics)] : []), ...(entry ? [`The entry for overrides of this limit: ${entry}`] : []));
  }
}
