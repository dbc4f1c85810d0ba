// #/tls: certificates and connections of each listener, from the metrics.

// Returns the samples of some families: { name, labels, value }.
function parseMetrics(text, families) {
  const found = [];
  for (const line of text.split("\n")) {
    const parsed = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parsed || !families.includes(parsed[1])) continue;
    const labels = {};
    for (const [, name, value] of (parsed[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (whole, one) => (one === "n" ? "\n" : one));
    }
    found.push({ name: parsed[1], labels, value: Number(parsed[3]) });
  }
  return found;
}

function tlsScreen(main) {
  const result = outcome();
  const certificates = table({ caption: "Certificates by name", key: (row) => JSON.stringify(row.labels), empty: "No listener has a certificate.", columns: [
    { name: "Name", value: (row) => row.labels.name, cell: (row) => showText(row.labels.name) },
    { name: "Listener", value: (row) => row.labels.listener, cell: (row) => showText(row.labels.listener) },
    { name: "Expires", value: (row) => row.value, cell: (row) => {
      const left = row.value * 1000 - Date.now();
      const level = left <= 0 ? "bad" : left < 14 * 86400000 ? "warn" : "good";
      return { text: left <= 0 ? `expired ${showDuration(-left)} ago` : `in ${showDuration(left)}`, level };
    } },
    { name: "Date", value: (row) => row.value, cell: (row) => showTime(row.value * 1000) },
  ] });
  const rows = (caption, label, empty) => table({ caption, key: (row) => JSON.stringify(row.labels), empty, columns: [
    { name: "Listener", value: (row) => row.labels.listener, cell: (row) => showText(row.labels.listener) },
    { name: label[1], value: (row) => row.labels[label[0]], cell: (row) => showText(row.labels[label[0]]).replaceAll("_", " ") },
    { name: "Number", number: true, value: (row) => row.value, cell: (row) => showNumber(row.value) },
  ] });
  const connections = rows("Open connections", ["protocol", "Protocol"], "No connection is open.");
  const handshakes = rows("TLS handshakes since the start", ["result", "Result"], "No handshake yet.");
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Listeners and TLS"), result.node, section(null, certificates.node), section(null, connections.node), section(null, handshakes.node));
  return { close: poll(10000, async (signal) => {
    try {
      const families = ["sluicegate_tls_cert_not_after_timestamp_seconds", "sluicegate_connections", "sluicegate_tls_handshakes_total"];
      const samples = parseMetrics(await (await request("GET", "/metrics", { signal })).text(), families);
      const of = (place) => samples.filter((sample) => sample.name === families[place]);
      certificates.update(of(0).sort((a, b) => a.value - b.value));
      connections.update(of(1));
      handshakes.update(of(2).filter((sample) => sample.value > 0));
      result.node.replaceChildren();
    } catch (error) {
      if (error.name !== "AbortError") result.show("bad", error.message);
    }
  }) };
}
