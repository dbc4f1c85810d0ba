// The last hour of the gateway: a chart with marks, and small lines beside numbers.

const RANGES = [["5", "5 minutes"], ["15", "15 minutes"], ["60", "60 minutes"]];
// The series that the tiles of the first screen show.
const TILE_SERIES = { rate: "requests_per_second", refused: "refused_per_second", failed: "failed_per_second", p50: "p50_ms", p99: "p99_ms" };
const MARK_WORDS = { start: "started", reload: "config changed", reload_failed: "config rejected", store_down: "store away", store_up: "store back" };
// Steps of five seconds that a sparkline shows: five minutes.
const SPARK_STEPS = 60;
const CHART_WIDTH = 600;
const CHART_HEIGHT = 100;

// A path through the numbers, from left to right; gaps where there is none.
function linePath(numbers, x, y) {
  let path = "";
  let isDrawn = false;
  numbers.forEach((number, place) => {
    if (isNumber(number)) path += `${isDrawn ? "L" : "M"}${x(place).toFixed(1)} ${y(number).toFixed(1)}`;
    isDrawn = isNumber(number);
  });
  return path;
}

// A line of the last minutes. What it shows is in the chart, and in a table.
function sparkline(series) {
  const [path, area] = [svg("path", { class: "line" }), svg("path", { class: "area" })];
  const node = svg("svg", { class: `spark ${series}`, viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" }, area, path);
  return { node, series, update(numbers) {
    const shown = numbers.slice(-SPARK_STEPS);
    const top = Math.max(0.001, ...shown.filter(isNumber));
    const x = (place) => SPARK_STEPS - shown.length + place + 1;
    const y = (number) => 19 - (18 * number) / top;
    path.setAttribute("d", linePath(shown, x, y));
    // Below a line with gaps, each step has its own area.
    area.setAttribute("d", shown.map((number, place) => (place && isNumber(number) && isNumber(shown[place - 1]) ? `M${x(place - 1)} 20V${y(shown[place - 1]).toFixed(1)}L${x(place)} ${y(number).toFixed(1)}V20z` : "")).join(""));
  } };
}

// A round number that is at least `number`: 1, 2 or 5 times a power of ten.
function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 0.1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((round) => round >= number) || 10 * power;
}

// The chart of requests. Calls `onPast` with each new past.
function pastChart(onPast) {
  const paths = { all: svg("path", { class: "all" }), refused: svg("path", { class: "refused" }), failed: svg("path", { class: "failed" }) };
  const lines = svg("g", { class: "grid" });
  const marks = svg("g", { class: "marks" });
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", role: "img" }, lines, paths.all, paths.refused, paths.failed, marks);
  const [highest, middle] = [el("span"), el("span")];
  const [from, until] = [el("span"), el("span")];
  const changes = el("ul", { class: "changes" });
  const rate = (name, member) => ({ name, number: true, cell: (row) => showRate(row[member]) });
  const rows = table({ caption: "Means of each minute", key: (row) => String(row.at), empty: "Measuring.",
    columns: [{ name: "Time", cell: (row) => showClock(row.at) }, rate("Requests per second", "requests"), rate("Refused per second", "refused"), rate("Failed per second", "failed")] });
  const range = choice("Range", "range", RANGES, addressQuery().get("minutes") || sessionStorage.getItem("range") || "5");
  const form = el("form", { class: "row", onsubmit: (event) => event.preventDefault(), onchange: () => {
    sessionStorage.setItem("range", range.lastElementChild.value);
    keepInAddress("minutes", range.lastElementChild.value);
    load().catch(() => {});
  } }, range);
  const line = (name) => svg("svg", { viewBox: "0 0 40 12", "aria-hidden": "true", class: "chart" }, svg("path", { class: name, d: "M0 6H40" }));
  const node = section(null, el("div", { class: "head" }, el("h2", {}, "Requests per second"), form),
    el("div", { class: "plot" }, el("div", { class: "scale", "aria-hidden": "true" }, highest, middle, el("span", {}, "0")), chart, el("div", { class: "times" }, from, until)),
    el("ul", { class: "legend" }, el("li", {}, line("all"), "all requests"), el("li", {}, line("refused"), "refused (dashed)"), el("li", {}, line("failed"), "failed (dotted)"), el("li", {}, "vertical lines: changes of the config, and outages, listed below")),
    changes, el("details", {}, el("summary", {}, "Show as a table"), rows.node));
  function draw(past, minutes) {
    const end = past.at_ms.length ? past.at_ms[past.at_ms.length - 1] : Date.now();
    const start = end - 60000 * minutes;
    const x = (ms) => (CHART_WIDTH * (ms - start)) / (end - start);
    const top = roundUp(Math.max(1, ...past.requests_per_second.filter(isNumber)));
    const y = (number) => CHART_HEIGHT - 1 - ((CHART_HEIGHT - 2) * number) / top;
    const path = (series) => linePath(past[series], (place) => x(past.at_ms[place]), y);
    const all = path("requests_per_second");
    paths.all.setAttribute("d", past.at_ms.length > 1 ? `${all}L${CHART_WIDTH} ${CHART_HEIGHT}L${x(past.at_ms[0]).toFixed(1)} ${CHART_HEIGHT}z` : "");
    paths.refused.setAttribute("d", path("refused_per_second"));
    paths.failed.setAttribute("d", path("failed_per_second"));
    lines.replaceChildren(svg("path", { d: `M0 ${y(top / 2)}H${CHART_WIDTH}M0 ${y(top)}H${CHART_WIDTH}` }));
    const shown = past.marks.filter((mark) => mark.at_ms >= start);
    marks.replaceChildren(...shown.map((mark) => svg("path", { class: mark.kind.startsWith("reload") || mark.kind === "start" ? "change" : "outage", d: `M${x(mark.at_ms).toFixed(1)} 0V${CHART_HEIGHT}` })));
    const latest = shown.slice(-5).reverse();
    changes.hidden = latest.length === 0;
    changes.replaceChildren(...latest.map((mark) => el("li", {}, `${showClock(mark.at_ms)} `, MARK_WORDS[mark.kind] || showText(mark.kind, 20), mark.kind.startsWith("reload") ? `: ${showText(mark.text, 200)}` : "")));
    setText(highest, showRate(top));
    setText(middle, showRate(top / 2));
    setText(from, showClock(start));
    setText(until, showClock(end));
    const last = past.at_ms.length - 1;
    chart.setAttribute("aria-label", `Requests per second in the last ${minutes} minutes: now ${showRate(past.requests_per_second[last])}, of which refused ${showRate(past.refused_per_second[last])} and failed ${showRate(past.failed_per_second[last])}; scale up to ${showRate(top)}`);
    drawTable(past);
  }
  function drawTable(past) {
    const byMinute = new Map();
    past.at_ms.forEach((at, place) => {
      const minute = 60000 * Math.floor(at / 60000);
      byMinute.set(minute, [...(byMinute.get(minute) || []), place]);
    });
    const mean = (series, places) => places.reduce((sum, place) => sum + past[series][place], 0) / places.length;
    rows.update(Array.from(byMinute, ([at, places]) => ({ at, requests: mean("requests_per_second", places), refused: mean("refused_per_second", places), failed: mean("failed_per_second", places) })));
  }
  async function load(signal) {
    const minutes = Number(range.lastElementChild.value);
    const past = await getJson(`/-/history?minutes=${minutes}`, { signal });
    draw(past, minutes);
    onPast(past);
  }
  return { node, close: poll(5000, load) };
}
