# /// script
# dependencies = ["oidc-provider-mock==0.3.4", "httpx==0.28.1"]
# [tool.apps]
# application = "OpenID Connect issuer"
# version = "pypi:oidc-provider-mock"
# client = "code flow, with httpx"
# ///
"""An OpenID Connect issuer whose tokens the gateway verifies with the keys that it finds by discovery. The issuer starts after
the gateway, ends, and comes back with another key."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import httpx
from harness import VENV, Gateway, start, until

ISSUER = "http://127.0.0.1:5556"
RETURN = "http://127.0.0.1:3000/callback"


class App(BaseHTTPRequestHandler):
    def do_GET(self):
        body = (self.headers["x-user"] or "nobody").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def log_in(user, client_id):
    """Logs in as a browser and an application would. Returns the token."""
    with httpx.Client(trust_env=False, timeout=20) as browser:
        browser.put(f"{ISSUER}/users/{user}", json={"email": f"{user}@example.com"}).raise_for_status()
        wanted = {"client_id": client_id, "redirect_uri": RETURN, "response_type": "code", "scope": "openid", "state": "s"}
        back = browser.post(f"{ISSUER}/oauth2/authorize", params=wanted, data={"sub": user})
        code = parse_qs(urlsplit(back.headers["location"]).query)["code"][0]
        grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": RETURN}
        return browser.post(f"{ISSUER}/oauth2/token", data=grant, auth=(client_id, "secret")).raise_for_status().json()["id_token"]


def start_issuer():
    return start([VENV / "oidc-provider-mock", "--port", "5556"], 5556)


def main():
    gateway = Gateway("tokens.md", "With an issuer on this machine")
    app = ThreadingHTTPServer(("127.0.0.1", gateway.app_port), App)
    threading.Thread(target=app.serve_forever, daemon=True).start()

    def fetch(token, x_user="root"):
        status, headers, body = gateway.fetch("/api", authorization=f"Bearer {token}", x_user=x_user)
        return status, body.decode(), headers

    # Nobody knows the keys yet, so no token can be called invalid.
    status, _, headers = fetch("e30.e30.e30")
    assert status in (401, 503), status
    status, _, headers = fetch("eyJhbGciOiJSUzI1NiJ9.e30.AAAA")
    assert status == 503 and 1 <= int(headers["retry-after"]) <= 10, (status, headers.items())
    issuer = start_issuer()
    token = log_in("anna", "shop-api")
    until(lambda: fetch(token)[0] == 200, "the keys have been fetched")
    assert fetch(token)[1] == "anna", "the application learns who it is, whatever the client claims"
    # A token for another application, a changed one, and none.
    assert fetch(log_in("anna", "other-api"))[0] == 401
    head, claims, signature = token.split(".")
    assert fetch(f"{head}.{claims}.{signature[:-6]}AAAAAA")[0] == 401
    assert gateway.fetch("/api")[0] == 401

    # The issuer is gone: the last keys serve. It comes back with another key: so do its new tokens, and the old are invalid.
    issuer.terminate()
    issuer.wait()
    assert fetch(token)[0] == 200
    start_issuer()
    newer = log_in("bert", "shop-api")
    until(lambda: fetch(newer)[:2] == (200, "bert"), "a token with a new key is accepted")
    until(lambda: fetch(token)[0] == 401, "a token with a withdrawn key is refused")

    # The limit counts each user.
    passed = sum(fetch(newer)[0] == 200 for _ in range(40))
    assert passed < 30 and fetch(newer)[0] == 429, passed
    assert fetch(log_in("carl", "shop-api"))[:2] == (200, "carl")


main()
