# /// script
# dependencies = ["jupyterlab==4.6.6", "ipykernel==7.4.0", "playwright==1.65.2"]
# [tool.apps]
# application = "JupyterLab"
# version = "pypi:jupyterlab"
# client = "Chromium"
# debian = { chromium = "chromium" }
# ///
"""JupyterLab, in Chromium over HTTPS: login, a notebook whose kernel computes, and a guesser who is locked out."""

import json

from harness import DIR, VENV, Gateway, browser, run, start, until

# What the cell prints is nowhere in its source.
CELL = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None,
        "source": "for n in range(3): print('the answer is', n * 21)"}
UPLOAD = """async (size) => {
    const token = document.cookie.match(/_xsrf=([^;]*)/)[1];
    const body = JSON.stringify({ type: "file", format: "text", content: "x".repeat(size) });
    const headers = { "X-XSRFToken": token, "content-type": "application/json" };
    return (await fetch("/api/contents/large.txt", { method: "PUT", headers, body })).status;
}"""
NOTEBOOK = {"cells": [CELL], "nbformat": 4, "nbformat_minor": 5, "metadata": {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}}


def main():
    gateway = Gateway("applications.md", "JupyterLab")
    (DIR / "notebooks").mkdir()
    (DIR / "notebooks/test.ipynb").write_text(json.dumps(NOTEBOOK))
    hashed = run([VENV / "python", "-c", "from jupyter_server.auth import passwd; print(passwd('right', 'sha1'))"])
    start([VENV / "jupyter", "lab", "--no-browser", "--allow-root", f"--port={gateway.app_port}",
           "--ServerApp.allow_remote_access=True", f"--PasswordIdentityProvider.hashed_password={hashed.strip()}",
           f"--ServerApp.root_dir={DIR}/notebooks"], gateway.app_port,
          env={"HOME": str(DIR), "PATH": f"{VENV}:/usr/bin:/bin"})

    with browser() as page:
        page.goto(f"{gateway.https_url}/lab/tree/test.ipynb")
        page.fill("input[name=password]", "right")
        page.click("#login_submit")
        cell = page.locator(".jp-CodeCell .cm-content").first
        cell.click()
        page.get_by_title("Python 3 | Idle").or_(page.locator("[data-status=idle]")).first.wait_for()
        page.keyboard.press("Shift+Enter")
        page.get_by_text("the answer is 42").wait_for()
        page.keyboard.press("Control+S")
        saved = DIR / "notebooks/test.ipynb"
        until(lambda: "the answer is 42" in saved.read_text(), "the notebook is saved")
        # A file of more than 10 MiB.
        assert page.evaluate(UPLOAD, 15_000_000) == 201
    assert (DIR / "notebooks/large.txt").stat().st_size == 15_000_000
    socket = [line for line in gateway.log(route="jupyter") if line["path"].endswith("/channels")]
    assert socket and socket[0]["protocol"] == "HTTP/2.0", socket

    guesses = [login(gateway, "wrong") for _ in range(7)]
    assert guesses == [401] * 5 + [429] * 2, guesses
    assert login(gateway, "right") == 429


def login(gateway, password):
    """The status of a login, with a token against forged requests in cookie and form, as a browser sends it."""
    xsrf = "x" * 32
    return gateway.fetch("/login", "POST", f"password={password}&_xsrf={xsrf}", cookie=f"_xsrf={xsrf}",
                       content_type="application/x-www-form-urlencoded")[0]


main()
