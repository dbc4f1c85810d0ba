"""What the files of this directory share: the gateway with a config of the manual, processes, and requests.

A test is a program. It fails with an exception; everything that it started ends with it (see ISOLATION in run.py).
"""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# Where the packages of the test are installed.
HOME = Path(os.environ["APP_HOME"])
VENV = HOME / "venv/bin"
# Files of the test and of its application. run.py removes them.
DIR = Path(os.environ["APP_DIR"])

# The addresses on which the gateway listens. The first is the default, which the manual uses.
HTTP = 8080
HTTPS = 8443

_SERVER = f"""
include = ["page.toml"]
[server]
listen = "127.0.0.1:{HTTP}"
access_log = true
[[listener]]
address = "127.0.0.1:{HTTPS}"
tls = {{ certificates = [{{ cert = "{ROOT}/conf/tls/sample.pem", key = "{ROOT}/conf/tls/sample.key" }}] }}
"""


def block_of(page, section):
    """The first `toml` block under a heading of a page of the manual."""
    text = (ROOT / "docs/guides" / page).read_text()
    found = re.search(rf"^## {re.escape(section)}\n.*?^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # A block of the next section is none of this one.
    assert found and text[found.start() + 3:found.end()].count("\n## ") == 0, f"{page}: no toml block under {section}"
    return found[1]


class Gateway:
    """The gateway, with the config that the manual shows for an application."""

    def __init__(self, page, section):
        config = block_of(page, section)
        # Port of the application, by its URL in the config.
        self.app_port = int(re.search(r'upstream = "[a-z0-9]+://127\.0\.0\.1:(\d+)"', config)[1])
        hosts = sorted(set(re.findall(r'host = "([a-z.]+)"', config)))
        self.host = hosts[0] if hosts else "localhost"
        self.url = f"http://{self.host}:{HTTP}"
        self.https_url = f"https://{self.host}:{HTTPS}"
        (DIR / "hosts").write_text(f"127.0.0.1 localhost {' '.join(hosts)}\n")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "--bind", DIR / "hosts", "/etc/hosts"], check=True)
        (DIR / "page.toml").write_text(config)
        (DIR / "sluicegate.toml").write_text(_SERVER)
        start([os.environ["SLUICEGATE"], "run", "--config", DIR / "sluicegate.toml"], HTTP, name="gateway")

    def log(self, **wanted):
        """Returns the lines of the access log with these values."""
        lines = map(json.loads, self.log_lines())
        return [line for line in lines if all(line.get(field) == value for field, value in wanted.items())]

    def log_lines(self):
        """Returns the lines of the access log as they are written."""
        # The last line may not be complete.
        lines = (DIR / "gateway.log").read_text().rpartition("\n")[0].splitlines()
        return [line for line in lines if line.startswith("{")]

    def expect(self, **wanted):
        """Waits for a line of the access log that has these values: it is written after the end of the response."""
        return until(lambda: self.log(**wanted), f"a line of the access log with {wanted}")[0]

    def fetch(self, path, method="GET", body=None, **headers):
        """Sends one request. Returns the status, the headers and the body of the response."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", HTTP, timeout=30)) as connection:
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            return self.fetch_over(connection, path, method, body, headers)

    def fetch_over(self, connection, path, method="GET", body=None, headers={}):
        """Sends one request over a connection, and opens it again if the gateway has closed it."""
        connection.request(method, path, body, {"host": self.host, "user-agent": "harness"} | headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, response.headers, text

    def in_flight(self, route):
        """Returns the number of requests that a route has in progress."""
        connection = http.client.HTTPConnection("127.0.0.1", 9900, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return int(re.search(rf'^sluicegate_requests_in_flight{{route="{route}"}} (\d+)', text, re.MULTILINE)[1])

    @contextlib.contextmanager
    def flooded(self, client, path, method="GET"):
        """Keeps a limit exhausted, as another program at the same address would, until it has refused this client. The
        client is recognised by the start of its User-Agent."""
        stopped = threading.Event()

        # Over connections that stay open, because a busy machine does not open as many as the limit admits requests.
        def flood():
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", HTTP, timeout=30)) as connection:
                while not stopped.is_set():
                    self.fetch_over(connection, path, method)

        def watch():
            while not stopped.wait(0.2):
                if self.refused(client):
                    stopped.set()

        until(lambda: self.fetch(path, method)[0] == 429, f"a limit refuses {path}", pause=0)
        threads = [threading.Thread(target=work, daemon=True) for work in (flood, flood, watch)]
        for thread in threads:
            thread.start()
        yield
        stopped.set()
        for thread in threads:
            thread.join()
        assert self.refused(client), f"no limit refused {client}"

    def refused(self, client):
        """Returns the log lines of the refusals of a client."""
        lines = (json.loads(line) for line in self.log_lines() if client in line)
        return [line for line in lines if line["status"] == 429 and (line["user_agent"] or "").startswith(client)]


def start(arguments, port, name=None, **options):
    """Starts a server and waits until it listens on the port."""
    name = name or Path(str(arguments[0])).name
    environment = os.environ | options.pop("env", {})
    with open(DIR / f"{name}.log", "w") as log:
        child = subprocess.Popen(arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
                                 **({"cwd": DIR} | options))

    def listens():
        assert child.poll() is None, f"{name} has ended with {child.returncode}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, f"{name} listens on port {port}")
    return child


def run(arguments, fails=False, **options):
    """Runs a client to its end. Returns what it printed. `fails`: whether it must fail; `None`: it may."""
    environment = os.environ | {"HOME": str(DIR)} | options.pop("env", {})
    options = {"cwd": DIR, "timeout": 120, "stdin": subprocess.DEVNULL} | options
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                           **options)
    command = " ".join(map(str, arguments))
    assert fails in (None, ended.returncode != 0), f"`{command}` ended with {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def until(condition, what, seconds=60, pause=0.05):
    """Repeats until the condition is true. Returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(pause)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextlib.contextmanager
def browser():
    """A page of Chromium without a window, which accepts the sample certificate."""
    # Only tests with a browser have it installed.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox of Chromium does not run as root.
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        page = chromium.new_page(ignore_https_errors=True)
        page.set_default_timeout(30_000)
        try:
            yield page
        except BaseException:
            page.screenshot(path=HOME / "failure.png")
            print(f"the page at the time of the failure: {HOME}/failure.png", file=sys.stderr)
            raise
        finally:
            chromium.close()


def _print_logs(kind, value, traceback):
    """Prints what the servers wrote, for a test that failed."""
    sys.__excepthook__(kind, value, traceback)
    for file in sorted(DIR.glob("*.log")):
        lines = file.read_text(errors="replace").splitlines()[-20:]
        print(f"--- {file.name}", *map(_shortened, lines), sep="\n", file=sys.stderr)


def _shortened(line):
    """A line of the access log with the fields that explain a failure; another line as it is."""
    if not line.startswith("{"):
        return line[:500]
    fields = ["time", "user_agent", "method", "path", "protocol", "route", "status", "reason", "refused_by"]
    return " ".join(str(json.loads(line)[field])[:60] for field in fields)


sys.excepthook = _print_logs
