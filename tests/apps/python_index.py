# /// script
# dependencies = ["pypiserver==2.4.2", "twine==7.0.0"]
# [tool.apps]
# application = "pypiserver"
# version = "pypi:pypiserver"
# client = "twine, pip"
# ///
"""pypiserver, twine and pip: a package of 12 MB is uploaded and installed, and both clients meet a limit."""

import base64
import hashlib
import os
import time
import zipfile

from harness import DIR, VENV, Gateway, run, start


def make_wheel(version):
    """A wheel with a module of 12 MB, which hardly compresses."""
    path = DIR / f"tool-{version}-py3-none-any.whl"
    info = f"tool-{version}.dist-info"
    files = {
        "tool.py": f'DATA = """{base64.b64encode(os.urandom(9_000_000)).decode()}"""\nANSWER = 42\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tool\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: sluicegate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{name},sha256={digest},{len(text)}\n"
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def main():
    gateway = Gateway("registries.md", "Python package index")
    (DIR / "packages").mkdir()
    start([VENV / "pypi-server", "run", "--port", str(gateway.app_port), "--interface", "127.0.0.1",
           "--passwords", ".", "--authenticate", ".", "--server", "wsgiref", DIR / "packages"], gateway.app_port)

    def upload(version, **options):
        return run([VENV / "twine", "upload", "--non-interactive", "--repository-url", f"{gateway.url}/",
                    "--username", "anna", "--password", "x", make_wheel(version)], **options)

    def install(target):
        run([VENV / "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "--trusted-host", gateway.host,
             "--index-url", f"{gateway.url}/simple/", "--target", DIR / target, "tool==1.0"])
        assert run([VENV / "python", "-c", "import tool; print(tool.ANSWER)"], cwd=DIR / target).strip() == "42"

    upload("1.0")
    assert max(line["bytes_in"] for line in gateway.log(method="POST")) > 12_000_000
    install("one")

    # pip waits until the limit admits it.
    with gateway.flooded("pip/", "/simple/"):
        install("two")

    # twine does not.
    with gateway.flooded("twine/", "/", "POST"):
        report = upload("2.0", fails=True)
        assert "429 Too Many Requests" in report, report
    time.sleep(2)
    upload("2.0")
    assert (DIR / "packages/tool-2.0-py3-none-any.whl").exists()


main()
