// Text and numbers as people read them. Keys, paths and headers come from clients: everything that is shown passes
// showText, and reaches the page as text only.

const TEXT_MAX = 120;
// Characters that are invisible, change the direction of text, or pile up on others.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}\u00a0\u115f\u1160\u1680\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\uffa0]|\p{M}{3,}/gu;

function escapeCharacter(text) {
  return Array.from(text, (one) => `\\u{${one.codePointAt(0).toString(16)}}`).join("");
}

// Returns the text with unseen characters escaped, of `most` characters at most.
function showText(value, most = TEXT_MAX) {
  const text = value === null || value === undefined ? "" : String(value);
  const start = text.length > 4 * most ? text.slice(0, 4 * most) : text;
  const shown = Array.from(start.replace(UNSEEN, escapeCharacter));
  return shown.length > most || start.length < text.length ? shown.slice(0, most).join("") + "\u2026" : shown.join("");
}

// Text of files: line ends and tabs stay.
function showLines(value) {
  return String(value).split("\n").map((line) => line.replace(/\r$/, "").split("\t").map((part) => showText(part, 2000)).join("\t")).join("\n");
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function showNumber(value, digits = 0) {
  return isNumber(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "\u2013";
}

function showRate(value) {
  return isNumber(value) ? showNumber(value, value < 100 ? 1 : 0) : "\u2013";
}

function showShare(part, whole) {
  if (!isNumber(part) || !isNumber(whole) || whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  return share > 0 && share < 0.1 ? "under 0.1 %" : `${showNumber(share, share < 10 ? 1 : 0)} %`;
}

// A duration with its two largest units.
function showDuration(ms) {
  if (!isNumber(ms)) return "\u2013";
  if (ms < 1000) return `${showNumber(ms, ms < 10 ? 1 : 0)} ms`;
  if (ms < 60000) return `${showNumber(ms / 1000, ms < 10000 ? 1 : 0)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.round(ms / 1000);
  const parts = [];
  for (const [name, seconds] of units) {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    if (count > 0 || parts.length > 0) parts.push(`${count} ${name}`);
  }
  return parts.slice(0, 2).filter((part) => !part.startsWith("0 ")).join(" ");
}

// The distance of local time to UTC, such as UTC+2.
function zoneOf(time) {
  const minutes = -time.getTimezoneOffset();
  const rest = Math.abs(minutes) % 60;
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${Math.floor(Math.abs(minutes) / 60)}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

function showTime(value) {
  const time = new Date(value);
  return Number.isNaN(time.getTime()) ? showText(value) : `${time.toLocaleString("sv")} ${zoneOf(time)}`;
}

// The time of a day.
function showClock(value) {
  const time = new Date(value);
  return Number.isNaN(time.getTime()) ? showText(value, 20) : `${time.toLocaleTimeString("sv")} ${zoneOf(time)}`;
}

function showAgo(value) {
  const time = new Date(value).getTime();
  return Number.isNaN(time) ? "" : `${showDuration(Math.max(0, Date.now() - time))} ago`;
}

function count(number, one, many = `${one}s`) {
  return `${showNumber(number)} ${number === 1 ? one : many}`;
}

// The first `most` of a list, each as `show(one)`, and how many more there are.
function firstOf(list, most, show) {
  const more = list.length - most;
  return [...list.slice(0, most).map(show), ...(more > 0 ? [`${showNumber(more)} more`] : [])];
}

// Whether a text contains another one, in upper or lower case.
const containsText = (text, part) => text.toLowerCase().includes(part.toLowerCase());

// What the address has after its `?`, and a change of one member of it, without a new entry in the history.
const addressQuery = () => new URLSearchParams(location.hash.split("?")[1]);

function keepInAddress(name, value) {
  const query = addressQuery();
  if (value) query.set(name, value);
  else query.delete(name);
  const text = query.toString();
  history.replaceState(null, "", (location.hash.split("?")[0] || "#/now") + (text ? `?${text}` : ""));
}
