# /// script
# dependencies = ["wsgidav==4.4.0", "cheroot==11.1.2"]
# [tool.apps]
# application = "wsgidav"
# version = "pypi:wsgidav"
# client = "rclone"
# debian = { rclone = "rclone" }
# ///
"""wsgidav, and rclone: a tree with odd names and a large file is copied, moved and compared, beyond the limit."""

import os

from harness import DIR, VENV, Gateway, run, start


def main():
    gateway = Gateway("registries.md", "WebDAV")
    (DIR / "shared").mkdir()
    start([VENV / "wsgidav", "--host", "127.0.0.1", "--port", str(gateway.app_port), "--root", DIR / "shared",
           "--auth", "anonymous"], gateway.app_port)

    tree = DIR / "tree"
    for folder in ["plain", "with space", "umlaut \u00e4", "50% #1 & more"]:
        (tree / folder).mkdir(parents=True)
        for number in range(50):
            (tree / folder / f"file {number}.txt").write_text(f"{folder} {number}\n")
    (tree / "large").write_bytes(os.urandom(30_000_000))

    # Over HTTPS, although the server has plain HTTP: it compares the scheme of `Destination` with its own.
    remote = [f"--webdav-url={gateway.https_url}", "--no-check-certificate", "--webdav-vendor=other",
              "--config=/dev/null"]
    # More transfers at once than rclone's default of 4, so that the limit refuses some.
    report = run(["rclone", "copy", tree, ":webdav:copy", "--transfers=32", "--checkers=32", "-vv", *remote])
    refused = gateway.log(refused_by="requests", status=429)
    assert refused, "the limit refused nothing"
    assert "429" in report, report[-2000:]
    run(["rclone", "check", "--download", tree, ":webdav:copy", *remote])

    run(["rclone", "moveto", ":webdav:copy/with space", ":webdav:copy/moved \u00e4", *remote])
    assert gateway.log(method="MOVE"), "rclone moves on the server"
    assert (DIR / "shared/copy/moved \u00e4/file 7.txt").read_text() == "with space 7\n"


main()
