// #/now: whether all is well, and what is wrong first.

const limitLink = (name) => `#/limits/${encodeURIComponent(name)}`;
// The gateway judges itself, as for `sluicegate status`. It lists broken things first.
function assess(event) {
  const reasons = (event.problems || []).map(({ level, text, link }) => ({ level: level === "bad" ? "bad" : "warn", text: showText(text, 500), href: /^#\//.test(link) ? link : "#/now" }));
  const bad = reasons.filter((reason) => reason.level === "bad").length;
  if (bad > 0) return { level: "bad", text: `Something is broken: ${count(bad, "problem")}.`, reasons };
  if (reasons.length > 0) return { level: "warn", text: `The gateway works, but ${reasons.length === 1 ? "one thing needs" : `${reasons.length} things need`} attention.`, reasons };
  // Before the first two measurements, an attack would not be known.
  const { requests } = event;
  return { level: "good", text: requests && isNumber(requests.per_second) ? "All is well." : "No problem so far.", reasons };
}

function describeTraffic({ requests }) {
  if (!requests || !isNumber(requests.per_second)) return "Measuring the requests.";
  if (requests.per_second === 0) return "No requests in the last seconds.";
  const refused = requests.refused_per_second > 0 ? `${showShare(requests.refused_per_second, requests.per_second)} of them refused` : "none of them refused";
  const failed = requests.failed_per_second > 0 ? `${showShare(requests.failed_per_second, requests.per_second)} failed` : "none failed";
  return `${showRate(requests.per_second)} requests per second, ${refused}, ${failed}.`;
}

// From this many reasons on, a link leads past them.
const JUMP_MIN = 3;

function verdictPanel(jump) {
  const title = el("h2");
  const past = el("p", { hidden: true }, el("a", { href: "#/now", onclick: (event) => {
    event.preventDefault();
    jump();
  } }, "Go to the most refused keys"));
  const list = el("ul");
  const traffic = el("p");
  const node = el("section", { class: "verdict", "aria-label": "State of the gateway" }, title, past, list, traffic);
  return { node, update(event) {
    const verdict = assess(event);
    const key = JSON.stringify(verdict);
    if (node.shown !== key) {
      node.shown = key;
      node.className = `verdict ${verdict.level}`;
      title.replaceChildren(icon(verdict.level), verdict.text);
      list.hidden = verdict.reasons.length === 0;
      past.hidden = verdict.reasons.length < JUMP_MIN;
      // Links stay the same elements, so that the focus stays where it is.
      verdict.reasons.forEach((reason, place) => {
        const item = list.children[place] || list.appendChild(el("li", {}, el("span"), " ", el("a")));
        item.firstElementChild.replaceChildren(mark(reason.level, reason.level === "bad" ? "Broken" : "Attention"));
        const link = item.lastElementChild;
        setText(link, reason.text);
        if (reason.href) link.setAttribute("href", reason.href);
        else link.removeAttribute("href");
      });
      while (list.children.length > verdict.reasons.length) list.lastElementChild.remove();
    }
    setText(traffic, describeTraffic(event));
    announce(`${verdict.level}${verdict.reasons.length}`, [verdict.text, ...verdict.reasons.map((reason) => reason.text)].join(" "));
  } };
}

// The keys with most refusals; a key is a link to its numbers.
function topKeys({ caption, query, onlyOne }) {
  const note = el("p", { class: "quiet" });
  const grid = table({ caption, empty: "No key was refused in this time.", key: (row) => `${row.limit} ${row.key}`, columns: [
    { name: "Key", cell: (row) => ({ text: showText(row.key), href: keyLink(row.limit, row.key) }) },
    ...(onlyOne ? [] : [{ name: "Limit", cell: (row) => ({ text: showText(row.limit, 60), href: limitLink(row.limit) }) }]),
    { name: "Requests", number: true, value: onlyOne ? (row) => row.count_min : undefined, cell: (row) => (row.count_min === row.count_max ? showNumber(row.count_min) : `${showNumber(row.count_min)} to ${showNumber(row.count_max)}`) },
    { name: "Share", cell: (row) => ({ text: showShare(row.share, 1), share: row.share }) },
    { name: "Left", number: true, cell: (row) => (row.override ? "override" : showNumber(row.remaining)) },
    { name: "Next passes", cell: (row) => (row.override || row.retry_after_ms === undefined ? "\u2013" : row.retry_after_ms === 0 ? "now" : `in ${showDuration(row.retry_after_ms)}`) },
    { name: "Last seen", cell: (row) => (isNumber(row.last_seen_seconds) ? `${showDuration(1000 * row.last_seen_seconds)} ago` : "\u2013") },
  ] });
  const node = el("div", {}, grid.node, note);
  return { node, async load(signal, replace) {
    try {
      const top = await getJson(`/-/top?${query()}`, { signal });
      grid.update(top.keys, replace);
      const sums = top.limits.filter((sum) => sum.total > 0).map((sum) => `${onlyOne ? "" : `${showText(sum.limit, 60)}: `}${count(sum.total, "request")} of ${sum.distinct_is_exact ? "" : "about "}${count(sum.distinct, "key")} in ${showDuration(1000 * sum.seconds)}`);
      setText(note, sums.slice(0, 3).join("; "));
      node.hidden = false;
    } catch (error) {
      if (error.name === "AbortError") return;
      grid.node.hidden = error.status === 403;
      if (error.status === 403) setText(note, "Keys need the role keys.");
      else setText(note, `The list cannot be loaded: ${error.message}`);
    }
  } };
}

function nowScreen(main) {
  const keys = section(null);
  keys.tabIndex = -1;
  const verdict = verdictPanel(() => keys.focus());
  const traffic = facts("cards large", [["rate", "Requests per second"], ["refused", "Refused per second"], ["failed", "Failed per second"],
    ["p50", "Median response time"], ["p99", "99 % respond within"]]);
  const numbers = facts("cards plain", [["in_flight", "In progress"], ["store", "Limit store"], ["servers", "Healthy servers"], ["config", "Config generation"], ["changes", "Live overrides"], ["descriptors", "File descriptors"], ["uptime", "Running for"]]);
  const sparklines = Object.entries(TILE_SERIES).map(([tile, series]) => {
    const line = sparkline(series);
    traffic.attach(tile, line.node);
    return line;
  });
  numbers.attach("changes", el("a", { href: "#/overrides" }, "List"));
  const chart = pastChart((past) => sparklines.forEach((line) => line.update(past[line.series])));
  const top = topKeys({ caption: "Most refused keys of the last minute", query: () => "by=refused&window=1m&n=10" });
  keys.append(top.node);
  const limits = table({ caption: "Limits that decided most, and their rates per second", key: (row) => row.limit, empty: "No route has a limit.",
    columns: limitColumns() });
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Now"), verdict.node, customerFinder(), traffic.node, chart.node, keys, section("State", numbers.node),
    section(null, limits.node, el("p", {}, el("a", { href: "#/limits" }, "All limits"))));
  const stop = poll(5000, (signal) => top.load(signal));
  return { close() {
    stop();
    chart.close();
  }, update(event) {
    verdict.update(event);
    const { requests, store, servers } = event;
    const window = `in the last ${showDuration(1000 * event.seconds)}`;
    const measured = event.seconds > 0.1;
    traffic.set("rate", showRate(requests.per_second), measured ? window : "measuring");
    traffic.set("refused", showRate(requests.refused_per_second), showShare(requests.refused_per_second, requests.per_second));
    traffic.set("failed", showRate(requests.failed_per_second), showShare(requests.failed_per_second, requests.per_second));
    traffic.set("p50", showDuration(requests.p50_ms), "estimate");
    traffic.set("p99", showDuration(requests.p99_ms), "estimate");
    numbers.set("in_flight", showNumber(requests.in_flight), "requests");
    numbers.set("store", store.up ? "responds" : "unavailable", !store.shared ? "memory of this gateway" : store.gateways > 1 ? `Redis, shared by ${store.gateways} gateways` : "Redis, one gateway");
    numbers.set("servers", servers.count === 0 ? "\u2013" : `${servers.count - servers.unhealthy_count} of ${servers.count}`, servers.count === 0 ? "no upstream is in use" : "");
    numbers.set("config", showNumber(event.generation), `loaded ${showAgo(event.loaded_at)}`);
    const { overrides, descriptors } = event;
    if (overrides) numbers.set("changes", showNumber(overrides.live), overrides.bans_total ? `${count(overrides.bans_total, "ban")} since the start` : "no bans since the start");
    if (descriptors) numbers.set("descriptors", showNumber(descriptors.open), `of ${showNumber(descriptors.max)}`);
    numbers.set("uptime", showDuration(1000 * event.uptime_seconds), `version ${showText(event.version, 20)}`);
    limits.update(event.limits.list.slice(0, 8));
  } };
}
