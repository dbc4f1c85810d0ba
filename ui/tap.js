// #/live: requests as they finish, from the tap.

const TAP_ROWS = 200;
const DECISIONS = [["deny", "refused"], ["shadow_deny", "would be refused"], ["allow", "admitted"]];

function tapScreen(main) {
  const result = outcome();
  const counts = el("p", { class: "quiet" }, "Not started.");
  let rows = [];
  let number = 0;
  let stream = null;
  const words = Object.fromEntries(DECISIONS);
  const decided = (one) => {
    const left = isNumber(one.remaining) ? `, ${showNumber(one.remaining)} left` : "";
    const wait = isNumber(one.retry_after_ms) && one.retry_after_ms > 0 ? `, passes in ${showDuration(one.retry_after_ms)}` : "";
    const text = `${showText(one.limit, 40)}: ${words[one.decision] || showText(one.decision, 20)}${left}${wait}`;
    return one.key ? { text: `${text} (${showText(one.key)})`, href: keyLink(one.limit, one.key) } : text;
  };
  // What decided comes first; the rest is shown in the row in full.
  const weight = ({ decision }) => (decision === "deny" ? 0 : decision === "allow" ? 2 : 1);
  const byWeight = (list) => [...list].sort((a, b) => weight(a) - weight(b));
  const grid = table({ caption: `The last ${TAP_ROWS} requests, the newest first`, kind: "compact", key: (row) => String(row.number), empty: "No request yet.", most: TAP_ROWS, columns: [
    { name: "Time", kind: "time", cell: (row) => showClock(row.time) },
    { name: "Status", kind: "state", cell: (row) => (row.status >= 400 ? { text: showText(row.status), level: row.status >= 500 ? "bad" : "warn" } : showText(row.status)) },
    { name: "Client", kind: "client", cell: (row) => showText(row.client, 60) },
    { name: "Request", kind: "request", cell: (row) => ({ lines: [`${showText(row.method, 20)} ${showText(row.path)}`, showText(row.host, 60), showText(row.user_agent, 60)] }) },
    { name: "Route", kind: "route", cell: (row) => showText(row.route, 60) },
    { name: "Limits", kind: "limits", cell: (row) => (row.decisions && row.decisions.length ? { lines: byWeight(row.decisions).map(decided) } : "none") },
    { name: "All", kind: "more", cell: (row) => ({ toggle: `Show all of request ${row.number + 1}` }) },
  ] });
  // The address has the filter, so that a colleague sees the same.
  const given = addressQuery();
  const fields = [textField("Limit", "limit", given.get("limit")), textField("Route", "route", given.get("route")),
    choice("Decision", "decision", [["", "any"], ...DECISIONS], given.get("decision") === "any" ? "" : given.get("decision") || "deny"),
    textField("Client (address or network)", "client", given.get("client")), textField("Status", "status", given.get("status"), { placeholder: "429 or 5xx" })];
  grid.update(rows);
  let waiting = null;
  const paint = () => {
    waiting = null;
    grid.update(rows, true);
  };
  const close = () => {
    if (stream) stream.close();
    stream = null;
    setText(start, "Start");
  };
  const open = () => {
    for (const { lastElementChild: field } of fields) keepInAddress(field.name, field.value.trim() || (field.name === "decision" && "any"));
    const query = fields.map((field) => field.lastElementChild).filter((field) => field.value.trim())
      .map((field) => `${field.name}=${encodeURIComponent(field.value.trim())}`);
    result.node.replaceChildren();
    setText(counts, "Waiting for requests.");
    setText(start, "Pause");
    stream = keepStream(`/-/tap?${[...query, "rate=50"].join("&")}`, (name, data) => {
      if (name === "counts") {
        setText(counts, `Since the start: ${showNumber(data.matched)} matched, ${showNumber(data.sent)} shown, ${showNumber(data.sampled_out)} left out by the rate of 50 per second, ${showNumber(data.lost)} lost.`);
        return;
      }
      if (name !== "message") return;
      rows.unshift({ ...data, number: number++ });
      if (rows.length > TAP_ROWS) rows.length = TAP_ROWS;
      // A burst of events is painted at once.
      if (!waiting) waiting = setTimeout(paint, 250);
    }, (state, error) => {
      if (state !== "failed") return;
      result.show("bad", error.message);
      if (error.status) close();
    });
  };
  const start = el("button", { type: "submit" }, "Start");
  const clear = el("button", { type: "button", onclick: () => { rows = []; paint(); } }, "Clear");
  if (!session.allows("keys")) {
    main.replaceChildren(el("h1", { tabindex: "-1" }, "Live"), section(null, needsRole("keys", "Watching requests")));
    return { close() {} };
  }
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Live"), section(null, el("p", {}, "Requests as they finish, without queries, headers and bodies. Empty fields match everything."),
    el("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      if (stream) close();
      else open();
    } }, ...fields, start, clear), result.node, counts, grid.node), customerFinder());
  return { close() {
    close();
    clearTimeout(waiting);
  } };
}
