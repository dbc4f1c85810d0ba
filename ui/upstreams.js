// #/upstreams: each server, and why it gets no requests.

const SERVER_WORDS = { up: ["good", "healthy"], down: ["bad", "unhealthy"], ejected: ["bad", "ejected"], unresolved: ["bad", "no address"] };

function upstreamsScreen(main) {
  const result = outcome();
  const panels = new Map();
  const list = el("div");
  const load = (row, member, most) => (isNumber(row[member]) ? `${showNumber(row[member])}${isNumber(row[most]) ? ` of ${showNumber(row[most])}` : ""}` : "\u2013");
  function panel(upstream) {
    const facts = el("p", { class: "quiet" });
    const grid = table({ caption: `Servers of ${showText(upstream.name, 80)}`, key: (row) => `${row.server} ${row.address || ""} ${row.weight}`, columns: [
      { name: "Server", value: (row) => row.server, cell: (row) => showText(row.address ? `${row.server} (${row.address})` : row.server) },
      { name: "State", value: (row) => row.state, cell: (row) => {
        const [level, word] = SERVER_WORDS[row.state] || ["warn", showText(row.state, 40)];
        return { text: word, level };
      } },
      { name: "Reason", cell: (row) => showText(row.reason || "\u2013").replaceAll("_", " ") },
      { name: "Returns", cell: (row) => (isNumber(row.returns_in_ms) ? `in ${showDuration(row.returns_in_ms)}` : "\u2013") },
      { name: "Weight", number: true, value: (row) => row.weight, cell: (row) => showNumber(row.weight) },
      { name: "In flight", number: true, value: (row) => row.in_flight, cell: (row) => load(row, "in_flight", "max_in_flight") },
      { name: "Connections", number: true, value: (row) => row.connections, cell: (row) => load(row, "connections", "max_connections") },
    ] });
    const node = section(`Upstream ${showText(upstream.name, 80)}`, facts, grid.node);
    return { node, update(now) {
      const words = [`Balanced by ${showText(now.balance)}.`];
      if (now.fail_open && now.servers.length) words.push("No server is healthy, so requests go to all of them (fail open).");
      if (isNumber(now.waiting)) words.push(`${count(now.waiting, "request waits", "requests wait")} for a server; ${showNumber(now.in_flight)} in flight.`);
      setText(facts, words.join(" "));
      grid.update(now.servers);
    } };
  }
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Upstreams"), result.node, list);
  return { close: poll(2000, async (signal) => {
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
  }) };
}
