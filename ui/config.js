// #/config: the config in force, its last reload, and, if the gateway allows it, its files and history.

function showDiagnostic(found) {
  const place = found.file ? `${showText(found.file, 200)}${found.line ? `:${found.line}:${found.column}` : ""}: ` : "";
  return `${place}${showText(found.message, 400)}${found.help ? `; ${showText(found.help, 400)}` : ""}`;
}

// A difference as lines: sentences, or names by kind (`{"limits": {"added": [...]}}`).
function showDiff(diff) {
  if (Array.isArray(diff)) return diff.map((line) => showText(typeof line === "string" ? line : line.text, 400));
  return Object.entries(diff || {}).flatMap(([kind, changes]) => Object.entries(changes || {})
    .filter(([, list]) => Array.isArray(list) && list.length > 0)
    .map(([change, list]) => showText(`${kind} ${change.replaceAll("_", " ")}: ${list.join(", ")}`, 400)));
}

const diffList = (lines) => el("ul", {}, ...firstOf(lines, 50, (line) => line).map((line) => el("li", {}, line)));

// Lists errors. `jump(found)` returns what goes to the place of an error, if that is shown.
function diagnosticList(list, jump = () => null) {
  return el("ul", {}, ...firstOf(list, 20, (found) => {
    const go = jump(found);
    return go ? el("button", { type: "button", class: "link", onclick: go }, showDiagnostic(found)) : showDiagnostic(found);
  }).map((item) => el("li", {}, item)));
}

// A text with the numbers of its lines.
function lineEditor(label) {
  const area = el("textarea", { spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", "aria-label": label });
  const numbers = el("pre", { class: "lines", "aria-hidden": "true" });
  let shown = 0;
  const count = () => {
    const lines = area.value.split("\n").length;
    if (lines !== shown) setText(numbers, Array.from({ length: lines }, (_, place) => place + 1).join("\n"));
    shown = lines;
  };
  area.addEventListener("input", count);
  area.addEventListener("scroll", () => { numbers.scrollTop = area.scrollTop; });
  return { area, node: el("div", { class: "editor" }, numbers, area), setText(text) {
    area.value = text;
    count();
  }, jump(line) {
    const lines = area.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    area.focus();
    area.setSelectionRange(start, start + (lines[line - 1] || "").length);
    area.scrollTop = Math.max(0, (area.scrollHeight / lines.length) * (line - 5));
  } };
}

// Replaces the secrets of a text, each second one of its pieces, by numbered dots. `restore` returns a text with the
// secrets again, except those that somebody replaced. Each text has its own dots, so that none of another is restored,
// and a secret returns only between the characters that it was between: elsewhere it could mean something else.
function maskSecrets(pieces) {
  const mask = `${"\u2022".repeat(6)}${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}-`;
  const hide = (number) => `${mask}${number}\u2022`;
  const around = (text, start, end) => `${text.slice(Math.max(0, start - 1), start)} ${text.slice(end, end + 1)}`;
  const dots = (text) => text.split("\u2022").length;
  const shown = pieces.map((piece, place) => (place % 2 ? hide((place + 1) / 2) : piece)).join("");
  const ends = pieces.map((_, place) => `${(pieces[place - 1] || "").slice(-1)} ${(pieces[place + 1] || "").slice(0, 1)}`);
  const restore = (edited) => {
    const all = edited.replace(new RegExp(`${mask}(\\d+)\u2022`, "g"), (whole, number, start) => {
      const place = 2 * number - 1;
      return pieces[place] !== undefined && around(edited, start, start + whole.length) === ends[place] ? pieces[place] : whole;
    });
    if (dots(all) > dots(pieces.join(""))) throw new Error("A hidden secret was changed in part, moved, or is from another text. Write it anew, or discard your changes.");
    return all;
  };
  return { shown, restore, count: Math.floor(pieces.length / 2) };
}

// Shows what a reload, a check or a save did.
function showOutcome(result, done, answer) {
  const texts = [done];
  if (answer.summary) texts.push(showText(answer.summary, 1000));
  const lines = showDiff(answer.changes && answer.changes.length ? answer.changes : answer.diff);
  if (lines.length) texts.push(diffList(lines));
  if (answer.warnings && answer.warnings.length) texts.push("Warnings:", diagnosticList(answer.warnings));
  if (answer.restart_needed_for && answer.restart_needed_for.length) texts.push(`Needs a restart: ${answer.restart_needed_for.map((key) => showText(key)).join(", ")}`);
  result.show(lines.some((line) => line.includes("[weaker]")) ? "warn" : "good", ...texts);
}

function showProblem(result, error, jump) {
  const { diagnostics, text_diff: diff } = error.problem || {};
  result.show("bad", diagnostics && diagnostics.length ? "The config has errors and was not applied." : error.message,
    ...(diagnostics && diagnostics.length ? [diagnosticList(diagnostics, jump)] : []),
    // The lines of the file are in it as they are.
    ...(diff ? [el("details", {}, el("summary", {}, "Show the difference, with secrets"), el("pre", { tabindex: "0" }, showLines(diff)))] : []));
}

// What the files have to do with the active config.
function describeFiles({ pinned, generation, last_reload: reload }) {
  if (isNumber(pinned)) return `not active: after a rollback, the config of generation ${pinned} is active in place of them. To activate the files, save a change of one, or return to their generation`;
  if (reload && reload.result === "failure") return `have errors, which are below, so generation ${generation} stays active`;
  return "have the active config";
}

function reloadPanel(refresh) {
  const status = facts("facts", [["generation", "Active"], ["hash", "Hash of the config"], ["files", "Files"], ["watch", "Edits are noticed by"], ["last", "Last reload"]]);
  const mistakes = el("div");
  const result = outcome();
  const run = async (dry) => {
    try {
      const answer = await (await request("POST", `/-/reload${dry ? "?dry_run=1" : ""}`)).json();
      showOutcome(result, answer.changed ? (dry ? "The files would change the config:" : `Generation ${answer.generation} is active.`) : "The files contain the active config.", answer);
      refresh();
    } catch (error) {
      showProblem(result, error);
    }
  };
  const node = section("Active config", status.node, mistakes, el("div", { class: "row" }, ...withRole("edit", "A reload",
    el("button", { type: "button", onclick: () => run(true) }, "Check the files"),
    el("button", { type: "button", onclick: async () => {
      if (await confirmAction("Reload the config?", "The gateway loads its files and applies them if they have no error.", "Reload")) run(false);
    } }, "Reload"))), result.node);
  return { node, update(found) {
    const reload = found.last_reload;
    status.set("generation", `generation ${found.generation}, loaded ${showTime(found.loaded_at)} (${showAgo(found.loaded_at)})`);
    status.set("hash", showText(found.hash, 80));
    status.set("files", describeFiles(found));
    status.set("watch", found.watch === "events" ? "events of the system" : "polling");
    status.set("last", reload ? `${showText(reload.result)}, ${showAgo(reload.at)}, by ${showText(reload.trigger)}` : "none since the start");
    const list = (reload && (reload.diagnostics || reload.warnings)) || [];
    mistakes.replaceChildren(...(list.length ? [mark("warn", reload.diagnostics ? "Rejected" : "Warnings"), diagnosticList(list)] : []));
  } };
}

// A text that was not saved when the login ended by itself: { name, text, masked, tag }.
let draft = null;
const forgetDraft = () => { draft = null; };

// A file as text, saved under the precondition that nobody else changed it.
function filePanel(refresh) {
  const result = outcome();
  const select = el("select", { name: "file", onchange: async () => {
    const wanted = select.value;
    select.value = name;
    if (!(await mayDiscard())) return;
    select.value = wanted;
    open();
  } });
  const editor = lineEditor("Text of the file");
  const { area } = editor;
  const buttons = el("div", { class: "row" },
    el("button", { type: "button", onclick: () => save(true) }, "Check"),
    el("button", { type: "button", onclick: () => save(false) }, "Save and apply"),
    el("button", { type: "button", onclick: async () => {
      if (await mayDiscard()) open();
    } }, "Discard changes"));
  const note = el("p", { class: "quiet" });
  let masked = null;
  const reveal = el("button", { type: "button", hidden: true, onclick: () => {
    try {
      const isSaved = !isChanged();
      editor.setText(masked.restore(area.value));
      if (isSaved) saved = area.value;
    } catch (error) {
      showProblem(result, error);
      return;
    }
    masked = null;
    reveal.hidden = true;
  } }, "Show secrets");
  const node = section("Files", el("div", { class: "row" }, el("label", {}, "File", select), reveal), note, editor.node, buttons, result.node);
  let tag = null;
  let files = [];
  let editable = false;
  // The file that is shown, and its text in the editor when it was loaded or saved.
  let name = "";
  let saved = "";
  const isChanged = () => area.value !== saved;
  const describeChange = () => `Your changes of ${showText(name, 200)} are not saved.`;
  const mayDiscard = async () => !isChanged() || confirmAction("Discard your changes?", describeChange(), "Discard");
  const path = () => `/-/config/files/${encodeURIComponent(select.value)}`;
  async function open() {
    try {
      const response = await request("GET", `${path()}?pieces=1`);
      tag = response.headers.get("etag");
      masked = maskSecrets((await response.json()).pieces);
      editor.setText(masked.shown);
      [name, saved] = [select.value, area.value];
      reveal.hidden = masked.count === 0;
      const file = files.find((one) => one.name === select.value) || {};
      const writable = editable && file.writable;
      area.readOnly = !writable;
      buttons.hidden = !writable;
      setText(note, writable ? "" : editable ? "This file cannot be written." : "Read-only: set edit = true in [admin] to edit here.");
      result.node.replaceChildren();
    } catch (error) {
      select.value = name || select.value;
      showProblem(result, error);
    }
  }
  // Shows the text that was not saved when the login ended.
  function restoreDraft() {
    if (name !== draft.name || area.readOnly) return;
    ({ masked, tag } = draft);
    editor.setText(draft.text);
    reveal.hidden = !masked || masked.count === 0;
    result.show("warn", "This is your text from before the login ended. It is not saved.");
    forgetDraft();
  }
  const put = async (dry) => {
    const headers = { "content-type": "application/toml", ...(tag ? { "if-match": tag } : {}) };
    return request("PUT", `${path()}${dry ? "?dry_run=1" : ""}`, { body: masked ? masked.restore(area.value) : area.value, headers });
  };
  const jump = (found) => (found.file && found.line && found.file.split("/").pop() === select.value.split("/").pop() ? () => editor.jump(found.line) : null);
  async function save(dry) {
    try {
      // What would change is known before the question, and an error prevents it.
      const checked = await (await put(true)).json();
      if (dry) {
        showOutcome(result, "No errors.", checked);
        return;
      }
      const lines = showDiff(checked.changes && checked.changes.length ? checked.changes : checked.diff);
      const effect = [el("p", {}, lines.length ? "The gateway writes the file and applies at once:" : "The gateway writes the file. It has the active config."), diffList(lines)];
      if (!(await confirmAction(`Save ${showText(name, 200)}?`, effect, "Save and apply"))) return;
      const text = area.value;
      const response = await put(false);
      const answer = await response.json();
      saved = text;
      tag = response.headers.get("etag") || tag;
      showOutcome(result, `Applied in ${showDuration(answer.applied_ms)}: generation ${answer.generation} is active.`, answer);
      refresh();
    } catch (error) {
      if (error.status === 412) {
        error.message = "Somebody else changed the file. Copy your text, discard your changes, and edit the new text.";
        // What is active, and the history, are those of the other change.
        refresh();
      }
      showProblem(result, error, jump);
    }
  }
  return { node, unsaved: () => (isChanged() ? describeChange() : null), keepDraft() {
    if (isChanged()) draft = { name, text: area.value, masked, tag };
  }, async load() {
    ({ files, editable } = await getJson("/-/config/files"));
    select.replaceChildren(...files.map((file) => el("option", { value: file.name }, showText(file.name, 200))));
    if (draft && files.some((file) => file.name === draft.name)) select.value = draft.name;
    if (files.length === 0) node.replaceChildren(el("h2", {}, "Files"), el("p", {}, "The gateway was started without a config file, so there is nothing to edit."));
    else await open();
    if (draft) restoreDraft();
  } };
}

function historyPanel(refresh) {
  const result = outcome();
  const list = el("ul");
  const node = section("History", list, result.node);
  let tag = null;
  const roll = async (generation) => {
    try {
      const headers = { "content-type": "application/json", ...(tag ? { "if-match": tag } : {}) };
      // What would change is known before the question, and an error prevents it.
      const preview = await sendJson("POST", "/-/rollback?dry_run=1", { generation }, { headers });
      const lines = showDiff(preview.changes && preview.changes.length ? preview.changes : preview.diff);
      const effect = [el("p", {}, `The gateway applies the config of generation ${generation} in place of the active one. ${lines.length ? "This changes:" : "Both have the same settings."}`), diffList(lines)];
      if (hasLeft(result) || !(await confirmAction(`Return to generation ${generation}?`, effect, "Return"))) return;
      const answer = await sendJson("POST", "/-/rollback", { generation }, { headers });
      showOutcome(result, `Generation ${answer.generation} is active.`, answer);
      refresh();
    } catch (error) {
      showProblem(result, error);
    }
  };
  return { node, async load() {
    const response = await request("GET", "/-/config/history");
    tag = response.headers.get("etag");
    const newest = (await response.json()).generations.sort((a, b) => b.generation - a.generation).slice(0, 20);
    list.replaceChildren(...newest.map((one, place) => el("li", {},
      `Generation ${one.generation}, ${showTime(one.loaded_at)}, by ${showText(one.trigger)}${one.token ? ` (${showText(one.token)})` : ""} `,
      place === 0 ? mark("good", "active") : one.restorable === false || !session.allows("edit") ? null : el("button", { type: "button", onclick: () => roll(one.generation) }, `Return to ${one.generation}`),
      diffList(showDiff(one.diff)))));
  } };
}

// A page of the admin API as text, loaded when it is opened.
const PAGE_TEXT_MAX = 300000;
function textPanel(title, path) {
  const text = el("pre", { tabindex: "0" });
  const open = async () => {
    const all = await getJson(path).then((found) => JSON.stringify(found, null, 2), (error) => error.message);
    setText(text, showLines(all.slice(0, PAGE_TEXT_MAX)) + (all.length > PAGE_TEXT_MAX ? "\n\u2026" : ""));
  };
  const details = el("details", { ontoggle: () => details.open && open() }, el("summary", {}, title), text);
  return { node: section(null, details), load: async () => {} };
}

// Which config is active, and how the last reload ended.
const describeActive = ({ generation, pinned, last_reload: last }) => JSON.stringify([generation, pinned, last && last.at]);

function configScreen(main) {
  const result = outcome();
  const reload = reloadPanel(() => load());
  const panels = [
    [filePanel(() => load())],
    [historyPanel(() => load())],
    [textPanel("Effective config", "/-/config")],
    [textPanel("Routes in the order in which they are tried", "/-/routes")],
    [textPanel("Changes by administrators", "/-/audit"), "edit"],
  ];
  if (!session.allows("edit")) panels[0][0] = { node: section("Files", needsRole("edit", "Reading and editing files")), load: async () => {} };
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Config"), result.node, reload.node);
  const history = panels[1][0];
  // What the live event says about the config that is shown.
  let shown = null;
  const load = () => loadWithRetry(reload.node, async () => {
    const found = await getJson("/-/status");
    shown = describeActive(found);
    reload.update(found);
    result.node.replaceChildren();
    if (history.node.isConnected) await history.load();
  }, (error) => result.show("bad", error.message));
  load();
  // Panels that this role may see, in their order.
  for (const [panel, role] of panels) {
    if (role && !session.allows(role)) continue;
    const place = el("p", { class: "quiet" });
    main.append(place);
    loadWithRetry(place, async () => {
      await panel.load();
      place.replaceWith(panel.node);
    }, (error) => setText(place, `A part of this screen cannot be loaded: ${error.message}`));
  }
  const [file] = panels[0];
  return { close() {}, update(event) {
    if (shown !== null && shown !== describeActive(event)) load();
  }, unsaved: () => (file.unsaved ? file.unsaved() : null), keepDraft: () => file.keepDraft && file.keepDraft() };
}
