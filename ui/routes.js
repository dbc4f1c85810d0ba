// #/routes: what each route serves, and how.

const ACTION_WORDS = [["upstream", (value) => value], ["respond", (value) => `responds ${value}`], ["redirect", (value) => `redirects with ${value}`],
  ["files", (value) => `files of ${value}`], ["split", (list) => list.map((one) => `${one.upstream} (${one.weight})`).join(", ")]];

function describeAction(action) {
  const found = ACTION_WORDS.find(([name]) => action && action[name] !== undefined && action[name] !== null);
  return found ? showText(found[1](action[found[0]])) : "\u2013";
}

// Routes of the config by name; a route with several hosts is listed once.
function groupRoutes(routes) {
  const groups = new Map();
  for (const route of routes) {
    const group = groups.get(route.name) || { ...route, places: [] };
    group.places.push(`${route.host || ""}${route.path}`);
    groups.set(route.name, group);
  }
  return groups;
}

function routesScreen(main) {
  const result = outcome();
  const filter = textField("Show routes whose name or path contains", "filter", addressQuery().get("name") || "", { type: "search", oninput: () => {
    keepInAddress("name", filter.lastElementChild.value);
    show();
  } });
  const idle = el("input", { type: "checkbox", name: "idle", checked: addressQuery().has("idle"), onchange: () => {
    keepInAddress("idle", idle.checked && "1");
    show();
  } });
  const hidden = el("p", { class: "quiet" });
  let configured = new Map();
  let rates = { routes: [], route_count: 0 };
  let isFirst = true;
  const rate = (name, member) => ({ name, number: true, value: (row) => row[member], cell: (row) => showRate(row[member]) });
  const time = (name, member) => ({ name, number: true, value: (row) => row[member], cell: (row) => showDuration(row[member]) });
  const numbers = [
    rate("Requests", "requests_per_second"),
    rate("4xx", "client_errors_per_second"),
    rate("429", "too_many_per_second"),
    rate("5xx", "failed_per_second"),
    time("p50", "p50_ms"),
    time("p99", "p99_ms"),
  ];
  let isLoaded = false;
  const grid = table({ keepsOrder: true, caption: "Routes, and their rates per second in the last ten seconds", key: (row) => row.route, empty: "No route has requests.", most: ROWS, columns: [
    { name: "Route", value: (row) => row.route, cell: (row) => showText(row.route, 60) },
    { name: "Matches", cell: (row) => ({ lines: firstOf(row.places, 3, (place) => showText(place, 60)) }) },
    { name: "Goes to", cell: (row) => describeAction(row.action) },
    ...numbers,
    { name: "Limits", cell: (row) => ({ lines: firstOf(row.limits, 4, (limit) => ({ text: showText(limit, 40), href: limitLink(limit) })) }) },
  ] });
  const branches = table({ caption: "Upstreams of splits, and their rates per second in the last ten seconds", key: (row) => `${row.route}\n${row.upstream}`, empty: "No split has requests.", most: ROWS, columns: [
    { name: "Upstream", value: (row) => row.upstream, cell: (row) => showText(row.upstream, 60) },
    { name: "Route", value: (row) => row.route, cell: (row) => showText(row.route, 60) },
    { name: "Weight", number: true, value: (row) => row.weight, cell: (row) => showNumber(row.weight) },
    ...numbers,
  ] });
  const splits = section(null, branches.node);
  splits.hidden = true;
  // The upstreams of a split in the order of the config, and their weights.
  function listBranches(row) {
    const split = (row.action && row.action.split) || [];
    const place = (branch) => split.findIndex((one) => one.upstream === branch.upstream);
    const found = (row.branches || []).map((branch) => ({ ...branch, route: row.route, weight: (split[place(branch)] || {}).weight }));
    return found.sort((a, b) => place(a) - place(b));
  }
  function show() {
    if (!isLoaded) return;
    const text = filter.lastElementChild.value;
    const all = rates.routes.map((row) => ({ places: [], limits: [], action: null, ...configured.get(row.route), ...row }));
    const found = all.filter((row) => containsText(row.route, text) || row.places.some((place) => containsText(place, text)));
    const listed = found.filter((row) => idle.checked || text !== "" || row.requests_total > 0);
    grid.update(listed, isFirst);
    const shown = listed.flatMap(listBranches);
    branches.update(shown, isFirst);
    splits.hidden = shown.length === 0;
    const left = found.length - listed.length;
    hidden.hidden = left === 0;
    setText(hidden, `${count(left, "route")} without requests since the start ${left === 1 ? "is" : "are"} not shown.`);
  }
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Routes"), section(null,
    el("form", { class: "row", onsubmit: (event) => event.preventDefault() }, filter, el("label", { class: "check" }, idle, "Show routes without requests")), grid.node, hidden, result.node), splits);
  const stops = [poll(5000, async (signal) => {
    try {
      rates = await getJson("/-/traffic", { signal });
      isLoaded = true;
      result.node.replaceChildren();
      show();
      isFirst = false;
    } catch (error) {
      if (error.name !== "AbortError") result.show("bad", error.message);
    }
  }), poll(30000, async (signal) => {
    configured = groupRoutes((await getJson("/-/routes", { signal })).routes);
    show();
  })];
  return { close: () => stops.forEach((stop) => stop()) };
}
