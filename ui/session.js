// Requests to this listener, with the token of the operator. The token is in the memory of this tab: in no cookie, which
// other ports of the host would get, and in no URL.

const STORED = "sluicegate-token";

const STORED_ROLE = "sluicegate-role";
const STORED_NAME = "sluicegate-name";
// Each role includes those before it.
const ROLES = ["metrics", "read", "keys", "limits", "edit"];

const session = {
  token: sessionStorage.getItem(STORED),
  role: sessionStorage.getItem(STORED_ROLE),
  // Name of the token.
  name: sessionStorage.getItem(STORED_NAME),
  // Called when a request needs a login.
  onLoginNeeded: () => {},
  keep(token, role, name) {
    Object.assign(session, { token, role: role || null, name: name || null });
    for (const [item, value] of [[STORED, token], [STORED_ROLE, role], [STORED_NAME, name]]) {
      if (value) sessionStorage.setItem(item, value);
      else sessionStorage.removeItem(item);
    }
  },
  // Whether the role of this login includes `role`; the gateway decides where the role is not known.
  allows: (role) => !ROLES.includes(session.role) || ROLES.indexOf(session.role) >= ROLES.indexOf(role),
};

// Says which role an action needs, in place of the action.
const needsRole = (role, action) => el("p", { class: "quiet" }, `${action} needs the role ${role}; yours is ${session.role}.`);
const withRole = (role, action, ...nodes) => (session.allows(role) ? nodes : [needsRole(role, action)]);

// A response other than success: the problem document that the gateway sent.
class Refused extends Error {
  constructor(status, problem) {
    // An error in a body begins with its place, such as `#/note: `.
    super(showText(((problem && problem.detail) || `the gateway responded ${status}`).replace(/^#\/([a-z_]+): /, "$1: "), 400));
    this.status = status;
    this.problem = problem || {};
  }
}

function send(method, path, { body, headers, signal, token = session.token } = {}) {
  const all = { ...headers };
  if (token) all.authorization = `Bearer ${token}`;
  return fetch(path, { method, body, headers: all, signal, cache: "no-store", credentials: "omit", redirect: "error" });
}

// Sends a request; returns the response.
async function request(method, path, options) {
  let response;
  try {
    response = await send(method, path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "the gateway does not respond" });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && !(options && options.login)) session.onLoginNeeded();
  throw new Refused(response.status, problem);
}

const getJson = async (path, options) => (await request("GET", path, options)).json();

function sendJson(method, path, value, options) {
  const headers = { "content-type": "application/json" };
  return request(method, path, { headers, ...options, body: JSON.stringify(value) }).then((response) => response.json());
}

const logIn = {
  // Trades the code of a one-time link for a session.
  async withCode(code) {
    const given = await sendJson("POST", "/-/session", { code }, { token: null, login: true });
    session.keep(given.token, given.role, given.name);
  },
  // Trades a token for a session, so that the token itself is not stored.
  async withToken(token) {
    const { code } = await sendJson("POST", "/-/session", {}, { token, login: true });
    await logIn.withCode(code);
  },
};

function loginScreen(main, done, why) {
  const result = outcome();
  const field = el("input", { type: "password", name: "token", required: true, autocomplete: "current-password", id: "token" });
  const form = el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await logIn.withToken(field.value.trim());
      done();
    } catch (error) {
      result.show("bad", error.status === 401 ? "The gateway does not know this token." : `Not logged in: ${error.message}`);
      field.focus();
    }
  } }, el("label", {}, "Token", field), el("button", { type: "submit" }, "Log in"));
  main.replaceChildren(el("h1", { tabindex: "-1" }, "Log in"), section(null,
    why ? el("p", {}, why) : null,
    el("p", {}, "Enter a token of [admin] in the config. Or run this command and open the link that it prints:"),
    el("pre", {}, "sluicegate ui -c FILE"), form, result.node,
    el("p", { class: "quiet" }, "This tab remembers the login until you close it.")));
  field.focus();
}
