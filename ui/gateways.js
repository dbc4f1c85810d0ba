// #/gateways: all gateways that share the store, added up.

// Numbers that are older than this are not added to what operators trust.
const OLD_MS = 15000;

function describePeer(row, hashes) {
  if (row.age_ms === null) return { text: "reports, but without numbers", level: "warn" };
  if (row.age_ms > OLD_MS) return { text: "numbers are old", level: "warn" };
  if (row.store_up === false) return { text: "no store", level: "bad" };
  if (row.lifecycle !== "ready") return { text: showText(row.lifecycle || "not known", 20), level: "warn" };
  if (row.servers_unhealthy > 0) return { text: `${row.servers_unhealthy} of ${row.servers} servers not healthy`, level: "warn" };
  return hashes > 1 ? { text: "ready, but configs differ", level: "warn" } : { text: "ready", level: "good" };
}

function gatewaysScreen(main) {
  const result = outcome();
  const total = facts("cards large", [["gateways", "Gateways"], ["rate", "Requests per second"], ["refused", "Refused per second"], ["failed", "Failed per second"], ["p99", "Slowest p99"]]);
  let own = null;
  let hashes = 1;
  const rate = (name, member) => ({ name, number: true, value: (row) => row[member], cell: (row) => showRate(row[member]) });
  const grid = table({ caption: "Gateways that share the store", key: (row) => row.name, columns: [
    { name: "Gateway", kind: "wide", value: (row) => row.host || "", cell: (row) => ({ lines: [`${showText(row.host || "name not known", 60)}${row.name === own ? " (this one)" : ""}`, ...(row.environment ? [showText(row.environment, 40)] : []), ...(row.admin ? [showText(row.admin, 60)] : [])] }) },
    { name: "State", cell: (row) => describePeer(row, hashes) },
    rate("Requests", "per_second"), rate("Refused", "refused_per_second"), rate("Failed", "failed_per_second"),
    { name: "p99", number: true, value: (row) => row.p99_ms, cell: (row) => showDuration(row.p99_ms) },
    { name: "In progress", number: true, value: (row) => row.in_flight, cell: (row) => showNumber(row.in_flight) },
    { name: "Config", cell: (row) => (row.generation === null ? "\u2013" : { lines: [`generation ${showNumber(row.generation)}`, showText(row.hash || "", 8)] }) },
    { name: "Version", value: (row) => row.version || "", cell: (row) => showText(row.version || "\u2013", 20) },
    { name: "Running for", number: true, value: (row) => row.uptime_seconds, cell: (row) => (isNumber(row.uptime_seconds) ? showDuration(1000 * row.uptime_seconds) : "\u2013") },
    { name: "Numbers from", cell: (row) => (row.age_ms === null ? "\u2013" : row.age_ms < 1000 ? "now" : `${showDuration(row.age_ms)} ago`) },
  ] });
  const keys = table({ caption: "Keys that all gateways together refused most in the last minute", key: (row) => `${row.limit} ${row.key}`, empty: "No key was refused in this time.", columns: [
    { name: "Key", cell: (row) => ({ text: showText(row.key), href: keyLink(row.limit, row.key) }) },
    { name: "Limit", cell: (row) => ({ text: showText(row.limit, 60), href: limitLink(row.limit) }) },
    { name: "Refused", number: true, cell: (row) => (row.count_min === row.count_max ? showNumber(row.count_min) : `${showNumber(row.count_min)} to ${showNumber(row.count_max)}`) },
    { name: "By gateways", number: true, cell: (row) => showNumber(row.gateways) },
  ] });
  const keysNode = section(null, keys.node);
  const hint = el("p", { class: "quiet" });
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Gateways"), result.node, total.node, section(null, grid.node, hint), keysNode);
  return { close: poll(5000, async (signal) => {
    try {
      const found = await getJson("/-/gateways", { signal });
      own = found.self;
      hashes = new Set(found.gateways.map((row) => row.hash).filter(Boolean)).size;
      total.set("gateways", showNumber(found.total.gateways), hashes > 1 ? `${hashes} different configs` : "one config");
      total.set("rate", showRate(found.total.per_second), `${showNumber(found.total.in_flight)} in progress`);
      total.set("refused", showRate(found.total.refused_per_second), showShare(found.total.refused_per_second, found.total.per_second));
      total.set("failed", showRate(found.total.failed_per_second), showShare(found.total.failed_per_second, found.total.per_second));
      total.set("p99", showDuration(found.total.p99_ms_max), "of one gateway");
      grid.update(found.gateways);
      keysNode.hidden = found.keys === null;
      keys.update(found.keys || [], true);
      setText(hint, found.store_shared ? ["Rates are those of five seconds. Each gateway has a dashboard at its own admin address.", found.keys_comparable ? null : hashNote(false)].filter(Boolean).join(" ") : "The store is the memory of this gateway, so no other gateway shares it.");
      if (found.store_fault) result.show("bad", `The other gateways cannot be listed: ${showText(found.store_fault, 200)}`);
      else result.node.replaceChildren();
    } catch (error) {
      if (error.name !== "AbortError") result.show("bad", error.message);
    }
  }) };
}
