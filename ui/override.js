// An override of one key, as an edit of the file that has the limit: checked, shown, confirmed, and in the history.

// The entry as TOML. `parts` are those of the screen of a key, `names` the parts of the limit's key.
function overrideEntry(parts, names, option, size) {
  const left = [...parts];
  const values = names.map((name) => {
    if (name === "all") return '"*"';
    const part = splitPart(left.shift() || "");
    // Without a value, the entry would apply to every key.
    if (!isKnown(part)) throw new Error(`The value of ${showText(name)} is not known, so no entry can have it.`);
    return part.isHash ? `{ hash = ${JSON.stringify(part.value)} }` : `{ percent = ${JSON.stringify(encodeShown(part.value))} }`;
  });
  if (left.length) throw new Error(TENANT);
  const amount = /^\d+$/.test(size) ? size : JSON.stringify(size);
  return `{ key = [${values.join(", ")}], ${option} = ${amount} }`;
}

const TENANT = "This key is of a tenant. An override applies to the whole budget: change fair.weights of the limit instead.";

// The text of a file with the entry. `line`: that of `overrides` if it exists, else of another option of the limit. The file
// may have changed since that config was loaded, so the line must still be that option in the table of this limit.
function withOverride(text, limit, line, option, entry) {
  const lines = text.split("\n");
  const header = lines.slice(0, line).findLast((one) => /^\s*\[/.test(one)) || "";
  const [, , name] = /^\s*\[\s*limit\s*\.\s*(["']?)([^"'\]]+)\1\s*\]\s*(?:#.*)?$/.exec(header) || [];
  const found = /^\s*(["']?)(\w+)\1\s*=\s*(\[?)/.exec(lines[line - 1] || "");
  if ((name || "").trim() !== limit || !found || found[2] !== option || (option === "overrides" && !found[3])) {
    throw new Error(`${option} is not on line ${line} of the file, in a table [limit.${limit}]. Write the entry by hand.`);
  }
  if (option === "overrides") lines[line - 1] = `${found[0]}${entry}, ${lines[line - 1].slice(found[0].length)}`;
  else lines.splice(line - 1, 0, `overrides = [${entry}]`);
  return lines.join("\n");
}

// Finds the file and line of an option; `origin` is FILE:LINE, and files are listed relative to the main one.
async function findOrigin(origin) {
  const [, path, line] = /^(.*):(\d+)$/.exec(origin);
  const { files } = await getJson("/-/config/files");
  const found = files.filter(({ name }) => path === name || path.endsWith(`/${name}`)).sort((a, b) => b.name.length - a.name.length);
  if (!found.length) throw new Error("The file of this limit is not among the files of the config.");
  return { name: found[0].name, line: Number(line) };
}

async function addOverride(result, limit, parts, size) {
  let entry = "";
  try {
    const about = await getJson(`/-/limits/${encodeURIComponent(limit)}`);
    const options = (await getJson("/-/config")).config.limit[limit];
    const leading = options.in_flight ? "in_flight" : "rate";
    entry = overrideEntry(parts, about.key, leading, size);
    const option = options.overrides ? "overrides" : leading;
    const { name, line } = await findOrigin(options[option].origin);
    const path = `/-/config/files/${encodeURIComponent(name)}`;
    const file = await request("GET", path);
    const body = withOverride(await file.text(), limit, line, option, entry);
    const put = async (query) => (await request("PUT", path + query, { body, headers: { "content-type": "application/toml", "if-match": file.headers.get("etag") } })).json();
    const lines = showDiff((await put("?dry_run=1")).changes || []);
    if (!lines.length) throw new Error("The file would not change.");
    if (!(await confirmAction(size === "0" ? "Block this key?" : "Override this key?", `${showText(name, 200)} is changed and applied at once. ${lines.join("; ")}`, "Save and apply"))) return;
    const { generation } = await put("");
    result.show("good", `Applied: generation ${generation} is in force. Config, History returns to the one before.`);
  } catch (error) {
    const { diagnostics } = error.problem || {};
    result.show("bad", error.message, ...(diagnostics ? [diagnosticList(diagnostics)] : []), ...(entry ? [`The entry for overrides of this limit: ${entry}`] : []));
  }
}

function overridePanel(result, limit, parts, refresh) {
  const change = (size) => addOverride(result, limit, parts, size).then(refresh);
  const size = textField("Size, such as 100/min, 0 or unlimited", "size", "", { required: true });
  return {
    block: el("button", { type: "button", id: "block", onclick: () => change("0") }, "Block key"),
    form: el("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      change(size.lastElementChild.value.trim());
    } }, size, el("button", { type: "submit" }, "Override")),
  };
}
