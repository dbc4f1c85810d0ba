# /// script
# [tool.apps]
# application = "git over HTTP"
# version = "debian:git"
# client = "git"
# debian = { git = "git", lighttpd = "lighttpd" }
# ///
"""git-http-backend behind lighttpd, and git: a push of 20 MB in chunks, a clone, and one fetch too many."""

import http.client
import os
from pathlib import Path

from harness import DIR, HTTP, Gateway, run, start, until


def git(*arguments, **options):
    identity = ["-c", "user.name=Anna", "-c", "user.email=anna@example.com", "-c", "init.defaultBranch=main"]
    return run(["git", *identity, *arguments], **options)


def main():
    gateway = Gateway("registries.md", "git")
    backend = Path(git("--exec-path").strip()) / "git-http-backend"
    git("init", "--bare", "repositories/app.git")
    git("-C", "repositories/app.git", "config", "http.receivepack", "true")
    (DIR / "lighttpd.conf").write_text(f"""
server.bind = "127.0.0.1"
server.port = {gateway.app_port}
server.document-root = "{DIR}/repositories"
server.modules = ("mod_alias", "mod_cgi", "mod_setenv")
alias.url = ("/" => "{backend}/")
cgi.assign = ("" => "")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "{DIR}/repositories", "GIT_HTTP_EXPORT_ALL" => "1")
""")
    start(["lighttpd", "-D", "-f", DIR / "lighttpd.conf"], gateway.app_port)

    url = f"{gateway.url}/app.git"
    git("init", "work")
    (DIR / "work/data").write_bytes(os.urandom(20_000_000))
    git("-C", "work", "add", "data")
    git("-C", "work", "commit", "--quiet", "--message", "Add data")
    git("-C", "work", "push", url, "main")
    push = gateway.expect(path="/app.git/git-receive-pack", status=200, method="POST")
    assert max(line["bytes_in"] for line in gateway.log(method="POST")) > 20_000_000, push
    git("clone", url, "clone", "--branch", "main")
    assert (DIR / "clone/data").read_bytes() == (DIR / "work/data").read_bytes()

    # Four fetches are in progress: their clients have not sent all of their requests.
    fetches = [http.client.HTTPConnection("127.0.0.1", HTTP) for _ in range(4)]
    for fetch in fetches:
        fetch.putrequest("POST", "/app.git/git-upload-pack", skip_host=True)
        fetch.putheader("host", gateway.host)
        fetch.putheader("content-type", "application/x-git-upload-pack-request")
        fetch.putheader("content-length", "1000")
        fetch.endheaders(b"0")
    until(lambda: gateway.in_flight("git") == 4, "four fetches are in progress")
    report = git("clone", url, "refused", fails=True)
    assert "The requested URL returned error: 429" in report, report
    gateway.expect(refused_by="fetches", status=429)
    for fetch in fetches:
        fetch.close()


main()
