// #/upstreams: each server, and why it gets no requests.

const SERVER_WORDS = { up: ["good", "healthy"], down: ["bad", "unhealthy"], ejected: ["bad", "ejected"], unresolved: ["bad", "no address"] };

const REASON_WORDS = { "check: no_connection": "no connection to it", "check: timeout": "checks get no response in time", "check: broken": "the connection breaks during checks", "check: status": "checks get a wrong status", "check: body": "checks get a wrong body",
  refused: "nothing listens there (connection refused)", timeout: "no response in time" };

// Why a server gets no requests, and since when.
function describeReason({ reason, for_ms: since }) {
  if (!reason) return "\u2013";
  const words = REASON_WORDS[reason] || showText(reason).replaceAll("_", " ");
  return isNumber(since) ? `${words}, since ${showClock(Date.now() - since)} (${showDuration(since)})` : words;
}

// Names of the routes that use each upstream.
function groupByUpstream(routes) {
  const groups = new Map();
  for (const { name, action } of routes) {
    for (const upstream of [action && action.upstream, ...((action && action.split) || []).map((one) => one.upstream)].filter(Boolean)) {
      groups.set(upstream, (groups.get(upstream) || new Set()).add(name));
    }
  }
  return groups;
}

function upstreamsScreen(main) {
  const result = outcome();
  let users = new Map();
  const panels = new Map();
  const list = el("div");
  const load = (row, member, most) => (isNumber(row[member]) ? `${showNumber(row[member])}${isNumber(row[most]) ? ` of ${showNumber(row[most])}` : ""}` : "\u2013");
  function panel(upstream) {
    const facts = el("p", { class: "quiet" });
    // Servers are counted only where the config bounds them.
    const counts = (member, name, most) => (upstream.servers.some((row) => isNumber(row[member])) ? [{ name, number: true, value: (row) => row[member], cell: (row) => load(row, member, most) }] : []);
    const grid = table({ caption: `Servers of ${showText(upstream.name, 80)}`, key: (row) => `${row.server} ${row.address || ""} ${row.weight}`, columns: [
      { name: "Server", value: (row) => row.server, cell: (row) => showText(row.address ? `${row.server} (${row.address})` : row.server) },
      { name: "State", value: (row) => row.state, cell: (row) => {
        const [level, word] = SERVER_WORDS[row.state] || ["warn", showText(row.state, 40)];
        return { text: word, level };
      } },
      { name: "Reason", kind: "wide", cell: describeReason },
      { name: "Returns", cell: (row) => (isNumber(row.returns_in_ms) ? `in ${showDuration(row.returns_in_ms)}` : "\u2013") },
      { name: "Weight", number: true, value: (row) => row.weight, cell: (row) => showNumber(row.weight) },
      ...counts("in_flight", "In flight", "max_in_flight"),
      ...counts("connections", "Connections", "max_connections"),
    ] });
    // The title of the section says whose servers they are.
    grid.node.className = "named";
    const node = section(`Upstream ${showText(upstream.name, 80)}`, facts, grid.node);
    return { node, update(now) {
      const words = [`Balanced by ${showText(now.balance)}.`];
      if (now.fail_open && now.servers.length) words.push("No server is healthy, so requests go to all of them (fail open).");
      if (isNumber(now.waiting)) words.push(`${count(now.waiting, "request waits", "requests wait")} for a server; ${showNumber(now.in_flight)} in flight.`);
      const routes = Array.from(users.get(now.name) || []);
      if (routes.length) words.push(`Routes: ${routes.slice(0, 10).map((route) => showText(route, 60)).join(", ")}${routes.length > 10 ? ", \u2026" : ""}.`);
      setText(facts, words.join(" "));
      grid.update(now.servers);
    } };
  }
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Upstreams"), result.node, list);
  const stopRoutes = poll(30000, async (signal) => {
    users = groupByUpstream((await getJson("/-/routes", { signal })).routes);
  });
  const stop = poll(2000, async (signal) => {
    try {
      const { upstreams } = await getJson("/-/upstreams", { signal });
      result.node.replaceChildren();
      const shown = upstreams.slice(0, 100);
      const current = new Set(shown.map((upstream) => upstream.name));
      for (const [name, old] of panels) {
        if (!current.has(name)) {
          old.node.remove();
          panels.delete(name);
        }
      }
      for (const upstream of shown) {
        if (!panels.has(upstream.name)) {
          panels.set(upstream.name, panel(upstream));
          list.append(panels.get(upstream.name).node);
        }
        panels.get(upstream.name).update(upstream);
      }
      if (upstreams.length === 0) result.show("good", "The config has no upstream servers.");
      else if (upstreams.length > shown.length) result.show("warn", `The first ${shown.length} of ${upstreams.length} upstreams are shown.`);
    } catch (error) {
      if (error.name !== "AbortError") result.show("bad", error.message);
    }
  });
  return { close() {
    stopRoutes();
    stop();
  } };
}
