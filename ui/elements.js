// Elements, tables that update in place, and dialogs. No text is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const ICONS = {
  good: ["M4 12.5l5 5L20 6.5"],
  warn: ["M12 3L22 20.5H2z", "M12 9.5v5", "M12 17v.6"],
  bad: ["M5 5l14 14", "M19 5L5 19"],
};

function icon(level) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, ...ICONS[level].map((d) => svg("path", { d })));
}

// An icon and a word: never colour alone.
function mark(level, text) {
  return el("span", { class: `mark ${level}` }, icon(level), text);
}

function section(title, ...children) {
  return el("section", {}, title ? el("h2", {}, title) : null, ...children);
}

// A list of names and values; values are updated by name. `attach` adds an element below a value.
function facts(kind, names) {
  const values = {};
  const isCards = kind.startsWith("cards");
  const list = el("dl", { class: kind });
  for (const [name, label] of names) {
    values[name] = el("dd", {}, "\u2013");
    list.append(isCards ? el("div", {}, el("dt", {}, label), values[name]) : el("dt", {}, label));
    if (!isCards) list.append(values[name]);
  }
  return { node: list, set(name, text, note) {
    const value = values[name];
    const key = `${text}\n${note || ""}`;
    if (value.shown === key) return;
    value.shown = key;
    value.replaceChildren(text, ...(note ? [el("small", {}, note)] : []), ...(value.attached ? [value.attached] : []));
  }, attach(name, node) {
    values[name].attached = node;
    values[name].append(node);
  } };
}

function bar(part, whole, label) {
  const share = whole > 0 ? Math.max(0, Math.min(100, (100 * part) / whole)) : 0;
  return svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { width: share.toFixed(1), height: 10 }));
}

// What a cell shows: a text, { text, href, level, share, isMinor }, { lines } of which each is a text or { text, href }, { toggle }, a
// button with this name that shows the row in full, or { acts }, buttons { id, text, label, kind } that call `act(id)`.
function fillCell(cell, spec, act) {
  const key = JSON.stringify(spec);
  if (cell.shown === key) return;
  cell.shown = key;
  const { text, href, level, share, lines, toggle, acts, isMinor } = typeof spec === "object" && spec !== null ? spec : { text: spec };
  // Narrow screens leave out what says nothing, and zeros.
  cell.classList.toggle("none", Boolean(isMinor) || text === "\u2013" || text === "" || text === "0");
  if (acts) {
    cell.replaceChildren(el("div", { class: "acts" }, ...acts.map((one) => el("button", { type: "button", class: one.kind, "aria-label": one.label, onclick: () => act(one.id) }, one.text))));
    return;
  }
  if (toggle) {
    const button = el("button", { type: "button", "aria-expanded": "false", "aria-label": toggle, onclick: () => {
      button.setAttribute("aria-expanded", String(cell.parentElement.classList.toggle("open")));
    } }, "\u22ef");
    cell.replaceChildren(button);
    return;
  }
  if (lines) {
    cell.replaceChildren(...lines.map((line) => el("div", {}, line.href ? el("a", { href: line.href }, line.text) : line.text || line)));
    return;
  }
  const link = cell.firstElementChild;
  if (href && link instanceof HTMLAnchorElement) {
    link.setAttribute("href", href);
    setText(link, text);
    return;
  }
  const content = href ? el("a", { href }, text) : level ? mark(level, text) : text;
  cell.replaceChildren(content, ...(share === undefined ? [] : [bar(share, 1, text)]));
}

// A table whose rows are updated in place. They are in the order of the list, or in that which somebody chose. Nothing moves
// under a pointer or the focus: meanwhile, rows keep their order, and new ones are last. `kind` is a class of the table. `columns`: { name, cell(row), value(row), number, kind, act(row, id) }; a column with `value` can be sorted,
// `kind` is a class of its cells (`short` for texts that do not wrap, `wide` for those that need space), and `act` is what its buttons do.
// Of more than `most` rows, a button shows as many more. `keepsOrder`: the address has the order.
function table({ caption, columns, key, empty, most = 500, kind = null, keepsOrder = false }) {
  const body = el("tbody");
  const heads = columns.map((column) => {
    const head = el("th", { scope: "col", class: column.number ? "number" : column.kind });
    if (!column.value) head.append(column.name);
    else {
      head.setAttribute("aria-sort", "none");
      head.append(el("button", { type: "button", onclick: () => sortBy(column, head) }, column.name));
    }
    return head;
  });
  // An empty table keeps its title.
  const none = el("div", { hidden: true }, el("p", { class: "caption" }, caption), el("p", { class: "quiet" }, "Loading\u2026"));
  let shownMost = most;
  let all = [];
  const moreText = el("span");
  const more = el("p", { class: "quiet", hidden: true }, moreText, " ", el("button", { type: "button", onclick: () => {
    shownMost += most;
    update(all);
  } }, "Show more"));
  const grid = el("table", { class: kind }, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), body);
  const rows = new Map();
  let data = new Map();

  // The order that somebody chose; `wanted` is that of the address, `-NAME` if descending.
  let order = null;
  let wanted = keepsOrder ? addressQuery().get("order") : null;

  function sortBy(column, head, down = head.getAttribute("aria-sort") === "ascending" || (head.getAttribute("aria-sort") === "none" && Boolean(column.number))) {
    heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    order = (a, b) => {
      const [left, right] = [column.value(data.get(a)), column.value(data.get(b))];
      const found = typeof left === "string" ? left.localeCompare(right) : (left ?? -1) - (right ?? -1);
      return down ? -found : found;
    };
    sortRows();
    if (keepsOrder) keepInAddress("order", `${down ? "-" : ""}${column.name}`);
  }

  // Puts the rows in this order. Those in their place are not touched.
  function moveRows(names) {
    names.forEach((name, place) => {
      const row = rows.get(name);
      if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
    });
  }

  const sortRows = () => moveRows(Array.from(rows.keys()).sort(order));

  const isInUse = () => grid.matches(":hover") || grid.contains(document.activeElement);

  // `replace`: rows in use may move too.
  function update(list, replace) {
    const mayMove = replace || !isInUse();
    all = list;
    data = new Map(list.slice(0, shownMost).map((row) => [key(row), row]));
    for (const [name, row] of rows) {
      if (!data.has(name)) {
        row.remove();
        rows.delete(name);
      }
    }
    for (const [name, value] of data) {
      let row = rows.get(name);
      if (!row) {
        row = el("tr", {}, ...columns.map((column, place) => el(place === 0 ? "th" : "td", {
          scope: place === 0 ? "row" : null, class: column.number ? "number" : column.kind, "data-label": place === 0 ? null : column.name,
        })));
        rows.set(name, row);
        body.append(row);
      }
      columns.forEach((column, place) => fillCell(row.children[place], column.cell(value), (id) => column.act(data.get(name), id)));
    }
    if (mayMove && !order) moveRows([...data.keys()]);
    grid.hidden = data.size === 0;
    none.hidden = data.size !== 0;
    // Before the first rows, it is not known whether there are any.
    setText(none.lastElementChild, empty || "Nothing yet.");
    if (wanted && data.size > 0) {
      const place = columns.findIndex((column) => column.value && column.name === wanted.replace(/^-/, ""));
      if (place >= 0) sortBy(columns[place], heads[place], wanted.startsWith("-"));
      wanted = null;
    } else if (mayMove && order) sortRows();
    more.hidden = list.length <= shownMost;
    setText(moreText, `The first ${showNumber(shownMost)} of ${showNumber(list.length)} are shown.`);
  }
  [grid.hidden, none.hidden] = [true, false];
  return { node: el("div", {}, grid, none, more), update };
}

// Asks once; `effect` is a text, or a list of elements, which may be fields. Resolves to true if the operator confirms; the
// focus starts at the first field or at Cancel, and returns to where it was. `kind` is the class of the button that confirms.
function confirmAction(title, effect, action, kind = "danger") {
  const dialog = document.getElementById("dialog");
  const before = document.activeElement;
  return new Promise((resolve) => {
    let confirmed = false;
    const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const go = el("button", { type: "submit", class: kind }, action);
    dialog.replaceChildren(el("form", { onsubmit: (event) => {
      event.preventDefault();
      confirmed = true;
      dialog.close();
    } }, el("h2", { id: "dialog-title" }, title), ...(typeof effect === "string" ? [el("p", {}, effect)] : effect), el("div", { class: "row" }, cancel, go)));
    dialog.onclose = () => {
      if (before && before.isConnected) before.focus();
      resolve(confirmed);
    };
    dialog.showModal();
    (dialog.querySelector("input, select") || cancel).focus();
  });
}

// What an action did. A status region, so that it is announced.
function outcome() {
  const node = el("div", { role: "status" });
  return { node, show(level, ...texts) {
    node.replaceChildren(el("div", { class: `outcome ${level}` }, ...texts.map((text) => typeof text === "string" ? el("p", {}, text) : text)));
  } };
}

function choice(label, name, options, value) {
  const select = el("select", { name }, ...options.map(([id, text]) => el("option", { value: id, selected: id === value }, text)));
  return el("label", {}, showText(label), select);
}

// The way to this screen: each a name and its address; the last one is this screen.
function trail(...steps) {
  const items = steps.flatMap(([text, href], place) => [place ? " / " : null, el("a", { href }, text)]);
  return el("p", { class: "trail" }, ...items);
}

function textField(label, name, value, more) {
  return el("label", {}, showText(label), el("input", { name, value: value || null, autocomplete: "off", spellcheck: "false", maxlength: "500", ...more }));
}
