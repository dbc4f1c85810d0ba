// Addresses, navigation, the age of what is shown, and announcements.

// `icon`: the path of a picture of 24 by 24 units. Narrow windows show the first four screens, and the others on demand.
const SCREENS = [
  { path: "now", name: "Now", icon: "M3 12h4l3-8 4 16 3-8h4", open: nowScreen },
  { path: "customers", name: "Customers", icon: "M12 12a4 4 0 100-8 4 4 0 000 8zM4 21c0-4 4-6 8-6s8 2 8 6", open: customersScreen },
  { path: "limits", icon: "M4 20V10M10 20V4M16 20v-8M22 20H2", name: "Limits", open: (main, parts) => (parts.length === 0 ? limitsScreen(main) : parts[1] === "key" ? keyScreen(main, [parts[0], ...parts.slice(2)]) : limitScreen(main, parts)) },
  { path: "live", name: "Live", icon: "M4 6h16M4 12h10M4 18h13", open: tapScreen },
  { path: "overrides", name: "Overrides", icon: "M5 4h14v16l-7-4-7 4zM9 9h6", open: overridesScreen },
  { path: "routes", name: "Routes", icon: "M5 19a2 2 0 100-4 2 2 0 000 4zM19 9a2 2 0 100-4 2 2 0 000 4zM7 17h6a4 4 0 000-8h4", open: routesScreen },
  { path: "upstreams", name: "Upstreams", icon: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.1M8 17h.1", open: upstreamsScreen },
  { path: "gateways", name: "Gateways", icon: "M12 3v5M12 16v5M3 12h5M16 12h5M8 8h8v8H8z", open: gatewaysScreen },
  { path: "config", name: "Config", icon: "M6 3h8l4 4v14H6zM9 12h6M9 16h6", open: configScreen },
  { path: "tls", name: "TLS", icon: "M6 11h12v10H6zM9 11V7a3 3 0 016 0v4", open: tlsScreen },
];

const main = document.getElementById("main");
let screen = null;
// The address of the screen.
let address = "";
let isLoggingIn = false;

// Announces changes of state to screen readers, one in ten seconds at most, and never numbers.
const announcer = { node: document.getElementById("announcer"), key: null, next: null, at: 0, timer: null };
function announce(key, text) {
  if (key === announcer.key) return;
  const first = announcer.key === null;
  announcer.key = key;
  if (first) return;
  announcer.next = text;
  if (announcer.timer) return;
  announcer.timer = setTimeout(() => {
    announcer.timer = null;
    announcer.at = Date.now();
    setText(announcer.node, announcer.next);
  }, Math.max(0, announcer.at + 10000 - Date.now()));
}

// A dialog belongs to its screen.
function closeScreen() {
  const dialog = document.getElementById("dialog");
  if (dialog.open) dialog.close();
  if (screen) screen.close();
  screen = null;
}

// What would be lost with the screen; null if nothing.
const unsaved = () => (screen && screen.unsaved ? screen.unsaved() : null);

// Asks before something is lost. Resolves to true if nothing is, or the operator does not mind.
async function mayLeave() {
  const what = unsaved();
  return !what || confirmAction("Leave without saving?", what, "Discard and leave");
}

// Shows the screen of the address, which a link, the history or the operator has changed.
async function followAddress() {
  const dialog = document.getElementById("dialog");
  if (dialog.open) dialog.close();
  if (unsaved()) {
    const wanted = location.hash;
    // The address stays that of the screen until the operator has answered.
    history.pushState(null, "", address);
    if (!(await mayLeave())) return;
    history.replaceState(null, "", wanted);
  }
  showScreen(true);
}

function parseAddress() {
  const parts = location.hash.replace(/^#\/?/, "").replace(/\?.*$/, "").split("/").filter((part) => part !== "");
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return [];
  }
}

function showScreen(focus) {
  if (isLoggingIn) return;
  closeScreen();
  const [path, ...parts] = parseAddress();
  const found = SCREENS.find((one) => one.path === path) || SCREENS[0];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.path === found.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  address = location.hash;
  screen = found.open(main, found.path === path ? parts : []);
  toggleMore(false);
  const title = main.querySelector("h1");
  showTitle();
  if (focus) title.focus();
  if (live.event && screen.update) screen.update(live.event);
  window.scrollTo(0, 0);
}

// A picture that is not current says so.
function showAge() {
  const stale = document.getElementById("stale");
  const age = Date.now() - live.at;
  const refused = live.error && live.error.status ? live.error : null;
  const isOld = live.stream && !isLoggingIn && (live.event ? age > 3500 : refused);
  stale.hidden = !isOld;
  const freshness = document.getElementById("freshness");
  setText(freshness, !live.event || isLoggingIn ? "" : isOld ? "not current" : "live");
  freshness.className = freshness.textContent === "live" ? "live" : "";
  if (!isOld) {
    if (live.event) announce("live", "The numbers are live again.");
    return;
  }
  const why = refused ? ` ${refused.message}` : " The gateway does not respond; trying again.";
  setText(stale, live.event ? `These numbers are ${showDuration(Math.round(age / 1000) * 1000)} old.${why}` : `There are no live numbers.${why}`);
}

// `focus`: whether somebody has just logged in here, and a reader of the screen must hear where that led.
function start(focus) {
  isLoggingIn = false;
  document.getElementById("logout").hidden = !session.token;
  openLive();
  showScreen(focus);
}

session.onLoginNeeded = () => {
  if (isLoggingIn) return;
  if (screen && screen.keepDraft) screen.keepDraft();
  askLogin(session.token ? "Your login has ended." : null);
};

function askLogin(why) {
  isLoggingIn = true;
  session.keep(null);
  closeLive();
  closeScreen();
  live.event = null;
  document.getElementById("logout").hidden = true;
  loginScreen(main, () => start(true), why);
}

// Two tabs may be about two gateways.
function showTitle() {
  const { environment, host } = live.event || {};
  document.title = [main.querySelector("h1").textContent, ...[environment, host].filter(Boolean).map((name) => showText(name, 40)), "Sluicegate"].join(" \u2013 ");
}

// The version of the gateway that this page belongs to.
let ownVersion = null;

// Says that the gateway was replaced by another version: this page may not know it.
function showVersion(version) {
  ownVersion = ownVersion || version;
  const renewed = document.getElementById("renewed");
  renewed.hidden = version === ownVersion;
  if (!renewed.hidden && !renewed.hasChildNodes()) {
    renewed.append(`The gateway has another version now, and this page belongs to ${showText(ownVersion, 20)}. `, el("button", { type: "button", onclick: () => location.reload() }, "Reload this page"));
  }
}

live.onEvent = (event) => {
  showVersion(event.version);
  setText(document.getElementById("version"), showText(event.version, 20));
  const login = session.role && `role ${session.role}${session.name ? ` as ${session.name}` : ""}`;
  setText(document.getElementById("gateway"), [event.host, login].filter(Boolean).map((text) => showText(text, 40)).join(" \u00b7 "));
  showEnvironment(event);
  if (screen) showTitle();
  if (screen && screen.update) screen.update(event);
  showAge();
};

const COLORS = ["gray", "green", "blue", "orange", "red"];
// The name of the environment, and its color as the edge of the page: a change in the wrong window is a costly mistake.
function showEnvironment({ environment, environment_color: color }) {
  const label = document.getElementById("environment");
  label.hidden = !environment;
  setText(label, environment ? showText(environment, 40) : "");
  const known = COLORS.includes(color) ? color : "gray";
  label.className = `environment ${known}`;
  document.querySelector("header").className = environment ? `edge environment-${known}` : "";
}

function toggleMore(isOpen) {
  const button = document.getElementById("more");
  button.setAttribute("aria-expanded", String(isOpen));
  button.parentElement.classList.toggle("open", isOpen);
}

function buildNavigation() {
  const list = document.getElementById("nav");
  for (const one of SCREENS) {
    list.append(el("li", {}, el("a", { href: `#/${one.path}`, "data-path": one.path }, svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: one.icon })), one.name)));
  }
  document.getElementById("more").addEventListener("click", (event) => toggleMore(event.currentTarget.getAttribute("aria-expanded") === "false"));
  document.getElementById("logout").addEventListener("click", async () => {
    if (!(await mayLeave())) return;
    forgetDraft();
    askLogin("You are logged out in this tab.");
  });
  // The address of the page is the screen, so the link must not change it.
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
}

// Logs in with the code in the address, if it has one. Returns whether it had one.
async function useCode() {
  const code = /^#code=(.+)$/.exec(location.hash);
  if (!code) return false;
  // The code works once; it must not stay in the history either.
  history.replaceState(null, "", location.pathname);
  try {
    await logIn.withCode(decodeURIComponent(code[1]));
    isLoggingIn = false;
  } catch (error) {
    // Without a token in the config, or in a tab that is logged in, no code is needed.
    const works = await request("GET", "/-/status", { login: true }).then(() => true, () => false);
    if (!works) askLogin(error.status === 0 ? error.message : "The link does not work any more: it works once, and for a short time.");
  }
  return true;
}

async function begin() {
  buildNavigation();
  await useCode();
  // A link with a code may be opened in a tab that shows the login.
  window.addEventListener("hashchange", async () => {
    if (!(await useCode())) await followAddress();
    else if (!isLoggingIn) start(true);
  });
  window.addEventListener("beforeunload", (event) => {
    if (unsaved()) event.preventDefault();
  });
  setInterval(showAge, 1000);
  if (!isLoggingIn) start(false);
}

begin();
