// Addresses, navigation, the age of what is shown, and announcements.

const SCREENS = [
  { path: "now", name: "Now", open: nowScreen },
  { path: "routes", name: "Routes", open: routesScreen },
  { path: "limits", name: "Limits", open: (main, parts) => (parts.length === 0 ? limitsScreen(main) : parts[1] === "key" ? keyScreen(main, [parts[0], ...parts.slice(2)]) : limitScreen(main, parts)) },
  { path: "live", name: "Live", open: tapScreen },
  { path: "upstreams", name: "Upstreams", open: upstreamsScreen },
  { path: "config", name: "Config", open: configScreen },
  { path: "tls", name: "TLS", open: tlsScreen },
];

const main = document.getElementById("main");
let screen = null;
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
  screen = found.open(main, found.path === path ? parts : []);
  const title = main.querySelector("h1");
  document.title = `${title.textContent} \u2013 Sluicegate`;
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
  setText(document.getElementById("freshness"), !live.event || isLoggingIn ? "" : isOld ? "not current" : "live");
  if (!isOld) {
    if (live.event) announce("live", "The numbers are live again.");
    return;
  }
  const why = refused ? ` ${refused.message}` : " The gateway does not respond; trying again.";
  setText(stale, live.event ? `These numbers are ${showDuration(Math.round(age / 1000) * 1000)} old.${why}` : `There are no live numbers.${why}`);
}

function start() {
  isLoggingIn = false;
  document.getElementById("logout").hidden = !session.token;
  openLive();
  showScreen(false);
}

session.onLoginNeeded = () => {
  if (isLoggingIn) return;
  askLogin(session.token ? "Your login has ended." : null);
};

function askLogin(why) {
  isLoggingIn = true;
  session.keep(null);
  closeLive();
  closeScreen();
  live.event = null;
  document.getElementById("logout").hidden = true;
  loginScreen(main, start, why);
}

live.onEvent = (event) => {
  setText(document.getElementById("version"), showText(event.version, 20));
  setText(document.getElementById("gateway"), [event.host, session.role && `role ${session.role}`].filter(Boolean).map((text) => showText(text, 40)).join(" \u00b7 "));
  if (screen && screen.update) screen.update(event);
  showAge();
};

function buildNavigation() {
  const list = document.getElementById("nav");
  for (const one of SCREENS) {
    list.append(el("li", {}, el("a", { href: `#/${one.path}`, "data-path": one.path }, one.name)));
  }
  document.getElementById("logout").addEventListener("click", () => askLogin("You are logged out in this tab."));
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
    if (!(await useCode())) showScreen(true);
    else if (!isLoggingIn) start();
  });
  setInterval(showAge, 1000);
  if (!isLoggingIn) start();
}

begin();
