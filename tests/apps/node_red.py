# /// script
# dependencies = ["playwright==1.65.2", "bcrypt==5.0.0"]
# [tool.apps]
# application = "Node-RED"
# version = "npm:node-red"
# client = "Chromium"
# npm = { node-red = "4.1.15" }
# debian = { node = "nodejs", npm = "npm", chromium = "chromium" }
# ///
"""Node-RED, in Chromium over HTTPS: login, the editor with its WebSocket, a flow that is deployed and called."""

import json

import bcrypt
from harness import DIR, HOME, Gateway, browser, start, until

FLOW = [
    {"id": "tab", "type": "tab", "label": "Test"},
    {"id": "in", "type": "http in", "z": "tab", "url": "/hello", "method": "get", "x": 1, "y": 1, "wires": [["say"]]},
    {"id": "say", "type": "template", "z": "tab", "template": "hello from a flow", "x": 2, "y": 1, "wires": [["out"]]},
    {"id": "out", "type": "http response", "z": "tab", "x": 3, "y": 1, "wires": []},
]


def login(gateway, password, path="/auth/token"):
    form = {"client_id": "node-red-editor", "grant_type": "password", "scope": "*", "username": "anna"}
    return gateway.fetch(path, "POST", json.dumps(form | {"password": password}),
                       content_type="application/json")


def main():
    gateway = Gateway("applications.md", "Node-RED")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode().replace("$2b$", "$2a$")
    account = {"username": "anna", "password": hashed, "permissions": "*"}
    settings = {"uiPort": gateway.app_port, "uiHost": "127.0.0.1", "userDir": str(DIR / "user"),
                "adminAuth": {"type": "credentials", "users": [account]}, "telemetry": {"enabled": False}}
    (DIR / "settings.js").write_text(f"module.exports = {json.dumps(settings)};\n")
    start(["node", HOME / "node_modules/node-red/red.js", "--settings", DIR / "settings.js"], gateway.app_port,
          name="node-red")

    status, _, token = login(gateway, "right")
    assert status == 200, token
    authorization = f"Bearer {json.loads(token)['access_token']}"
    status, _, text = gateway.fetch("/flows", "POST", json.dumps(FLOW), content_type="application/json",
                                  authorization=authorization)
    assert status == 204, text
    # Node-RED starts the flow after its response.
    until(lambda: gateway.fetch("/hello")[2] == b"hello from a flow", "the flow responds")

    with browser() as page:
        page.goto(gateway.https_url)
        page.fill("#node-dialog-login-username", "anna")
        page.fill("#node-dialog-login-password", "right")
        page.click("#node-dialog-login-submit")
        # The flow is on the canvas, which the WebSocket keeps up to date.
        page.get_by_text("[get] /hello").first.wait_for()
    assert gateway.expect(route="node-red", path="/comms")["protocol"] == "HTTP/2.0"

    # Each is a path at which Node-RED accepts logins.
    paths = ["/auth/token", "/AUTH/token", "//auth/token", "/x/../Auth/Token/", "/%61uth/token", "/auth/TOKEN/"]
    statuses = [login(gateway, "a guess", path)[0] for path in [*paths, "/auth/token"]]
    assert statuses == [403] * 5 + [429] * 2, statuses
    with browser() as page:
        page.goto(gateway.https_url)
        page.fill("#node-dialog-login-username", "anna")
        page.fill("#node-dialog-login-password", "right")
        page.click("#node-dialog-login-submit")
        page.get_by_text("Login failed").first.wait_for()


main()
