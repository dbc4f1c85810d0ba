// An override of one key, as an edit of the file that has the limit: checked, shown, confirmed, and in the history.

// The entry as TOML. `parts` are those of the screen of a key, `names` the parts of the limit's key.
function overrideEntry(parts, names, option, size) {
  const left = [...parts];
  const values = names.map((name) => {
    const part = name === "all" ? { value: null } : splitPart(left.shift());
    if (part.value === null) return '"*"';
    return part.isHash ? `{ hash = ${JSON.stringify(part.value)} }` : `{ percent = ${JSON.stringify(encodeShown(part.value))} }`;
  });
  const amount = /^\d+$/.test(size) ? size : JSON.stringify(size);
  return `{ key = [${values.join(", ")}], ${option} = ${amount} }`;
}

// The text of a file with the entry. `line`: that of `overrides` if it exists, else of another option of the limit.
function withOverride(text, line, exists, entry) {
  const lines = text.split("\n");
  const at = lines[line - 1];
  if (exists) lines[line - 1] = at.replace(/(overrides["']?\s*=\s*\[)/, (start) => `${start}${entry}, `);
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
    const exists = Boolean(options.overrides);
    const { name, line } = await findOrigin((options.overrides || options[leading]).origin);
    const path = `/-/config/files/${encodeURIComponent(name)}`;
    const file = await request("GET", path);
    const body = withOverride(await file.text(), line, exists, entry);
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
