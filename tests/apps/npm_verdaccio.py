# /// script
# dependencies = ["bcrypt==5.0.0"]
# [tool.apps]
# application = "verdaccio"
# version = "npm:verdaccio"
# client = "npm"
# npm = { verdaccio = "6.8.0" }
# overrides = { "node-fetch@cjs" = "2.6.7" }
# debian = { node = "nodejs", npm = "npm" }
# ///
"""verdaccio, and npm: a scoped package of 12 MB is published and installed, also while a limit refuses."""

import base64
import json
import os

from harness import DIR, HOME, Gateway, run, start


def main():
    gateway = Gateway("registries.md", "npm registry")
    (DIR / "verdaccio.yml").write_text(f"""
storage: {DIR}/packages
max_body_size: 100mb
auth: {{ htpasswd: {{ file: {DIR}/htpasswd }} }}
packages: {{ "**": {{ access: $all, publish: $authenticated }} }}
log: {{ type: stdout, format: pretty, level: warn }}
""")
    start([HOME / "node_modules/.bin/verdaccio", "--config", DIR / "verdaccio.yml", "--listen",
           f"127.0.0.1:{gateway.app_port}"], gateway.app_port)

    # What `npm login` does, which reads a terminal.
    account = json.dumps({"name": "anna", "password": "a long password"})
    status, _, text = gateway.fetch("/-/user/org.couchdb.user:anna", "PUT", account, content_type="application/json")
    assert status == 201, text
    settings = f"registry={gateway.url}/\n//{gateway.host}:8080/:_authToken={json.loads(text)['token']}\n"
    (DIR / ".npmrc").write_text(settings + "audit=false\nfund=false\nupdate-notifier=false\n")

    package = DIR / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "@team/tool", "version": "1.2.3", "main": "index.js"}')
    (package / "index.js").write_text(f"// {base64.b64encode(os.urandom(12_000_000)).decode()}\nmodule.exports = 42;\n")
    run(["npm", "publish"], cwd=package)
    assert max(line["bytes_in"] for line in gateway.log(method="PUT")) > 12_000_000
    gateway.expect(path="/@team%2Ftool", method="PUT")

    run(["npm", "install", "@team/tool", "--prefix", DIR / "one"])
    assert run(["node", "-p", "require('@team/tool')"], cwd=DIR / "one").strip() == "42"

    # Another program at this address uses up the limit for a while: npm tries again.
    run(["npm", "cache", "clean", "--force"])
    with gateway.flooded("npm/", "/-/ping"):
        run(["npm", "install", "@team/tool", "--prefix", DIR / "two"])
    assert run(["node", "-p", "require('@team/tool')"], cwd=DIR / "two").strip() == "42"


main()
