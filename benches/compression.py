#!/usr/bin/env python3
"""Compressed responses of Sluicegate beside nginx and Caddy: CPU per response and size, in one run.

    benches/compression.py                       everything, about three minutes
    benches/compression.py --rounds 3 '*/text'   some subjects
    benches/compression.py --markdown            the results as a table for the documentation

Each proxy forwards to the same upstream, which serves 100 kB of text (pages of the manual) and of JSON, and one page of
4 kB. gzip has level 5 everywhere. The proxy under test has the first core to itself; wrk and the upstream share
the second. Every round runs every subject once, every other round in reverse order. "CPU" is that of the proxy per
response, "extra" what compression adds to it: the CPU beyond that of the same proxy without compression. Compare ratios
only, because absolute figures vary with the machine. Needs wrk, nginx and caddy, and a release build.
"""
import argparse
import fnmatch
import glob
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from urllib.request import Request, urlopen

import compare
import subjects as make

# File of the upstream -> its media type.
BODIES = {"text": "text/html", "json": "application/json", "small": "text/html"}
LEVEL = 5
# Proxy -> the codings that its clients accept; None for the proxy without compression.
CODINGS = {
    "sluicegate": [None, "gzip", "br", "zstd"],
    "nginx": [None, "gzip"],
    "caddy": [None, "gzip", "zstd"],
}
REFERENCE = ("nginx", "gzip")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="PROXY-CODING/BODY", help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=int, default=2, help="seconds of load per subject and round")
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=f"{target}/release/sluicegate")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    missing = [name for name in ("wrk", "nginx", "caddy") if not shutil.which(name)]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}\nDebian: apt-get install -y --no-install-recommends {' '.join(missing)}")
    if not os.access(options.binary, os.X_OK):
        sys.exit(f"{options.binary} is not there; build it: cargo build --release")
    names = [name(proxy, coding, body) for proxy in CODINGS for coding in CODINGS[proxy] for body in BODIES]
    patterns = options.subjects or ["*"]
    chosen = [subject for subject in names if any(fnmatch.fnmatch(subject, pattern) for pattern in patterns)]
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as directory:
        results = measure(make.Bench(directory), os.path.abspath(options.binary), chosen, options)
    print_results(results, options.markdown)


def name(proxy, coding, body):
    return f"{proxy}-{coding or 'plain'}/{body}"


def parse(subject):
    """Splits the name of a subject into proxy, coding and body."""
    proxy, rest = subject.split("-")
    coding, body = rest.split("/")
    return proxy, None if coding == "plain" else coding, body


def write_bodies(bench):
    """Writes the files that the upstream serves. Returns their directory."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs")
    pages = [open(path, encoding="utf-8").read() for path in sorted(glob.glob(f"{root}/**/*.md", recursive=True))]
    text = "".join(pages)[:100_000]
    words = re.findall(r"[a-z]{4,}", text)
    records = [
        {"id": number * 7919 % 100_003, "name": " ".join(words[number * 3:number * 3 + 3]), "active": number % 3 == 0,
         "tags": words[number * 5:number * 5 + 4], "price": number * 104729 % 9973 / 100}
        for number in range(1000)
    ]
    directory = os.path.join(bench.dir, "site")
    os.mkdir(directory)
    for file, body in {"text": text, "json": json.dumps(records)[:100_000], "small": text[:4000]}.items():
        with open(os.path.join(directory, file), "w", encoding="utf-8") as out:
            out.write(body)
    # The workers of nginx, which may run as another user, read them.
    os.chmod(bench.dir, 0o755)
    return directory


def nginx_command(bench, file, http):
    text = f"""worker_processes 1; daemon off; master_process off; pid {bench.dir}/{file}.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000; {http} }}"""
    return ["nginx", "-p", bench.dir, "-c", bench.write(file, text)]


def upstream_command(bench, site):
    types = "".join(f"location = /{body} {{ default_type {kind}; }}" for body, kind in BODIES.items())
    return nginx_command(bench, "upstream.conf", f"server {{ listen 127.0.0.1:{bench.upstream}; root {site}; {types} }}")


def proxy_command(bench, proxy, coding, binary, port):
    """The command of a proxy which compresses if `coding` is given."""
    if proxy == "nginx":
        gzip = f"gzip on; gzip_comp_level {LEVEL}; gzip_proxied any; gzip_types application/json; gzip_vary on;"
        return nginx_command(bench, f"{proxy}-{coding}.conf", f"""{gzip if coding else ""}
            upstream up {{ server 127.0.0.1:{bench.upstream}; keepalive 64; }}
            server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://up;
            proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Accept-Encoding ""; }} }}""")
    if proxy == "caddy":
        encode = {None: "", "gzip": f"encode {{\n gzip {LEVEL}\n}}", "zstd": "encode zstd"}[coding]
        text = f"""{{
            admin off
            auto_https off
            storage file_system {bench.dir}/caddy
            log {{
                level ERROR
            }}
        }}
        http://127.0.0.1:{port} {{
            {encode}
            reverse_proxy 127.0.0.1:{bench.upstream} {{
                header_up -Accept-Encoding
                transport http {{
                    compression off
                }}
            }}
        }}"""
        return ["caddy", "run", "--adapter", "caddyfile", "--config", bench.write(f"caddy-{coding}", text)]
    text = f"""[server]
listen = ["127.0.0.1:{port}"]
workers = 1
compress = {"true" if coding else "false"}
[admin]
listen = "127.0.0.1:{make.free_port()}"
[[route]]
upstream = "http://127.0.0.1:{bench.upstream}"
request_headers = {{ remove = ["accept-encoding"] }}
"""
    return [binary, "run", "--config", bench.write(f"sluicegate-{coding}.toml", text)]


def measure(bench, binary, chosen, options):
    """Runs all rounds. Returns a dict of subject -> one dict of figures per round."""
    front, back = sorted(os.sched_getaffinity(0))[:2]
    results = {subject: [] for subject in chosen}
    upstream = compare.spawn(back, upstream_command(bench, write_bodies(bench)), bench)
    try:
        compare.await_port(upstream, bench.upstream, bench)
        for number in range(options.rounds):
            for at, subject in enumerate(chosen if number % 2 == 0 else reversed(chosen), 1):
                print(f"round {number + 1} of {options.rounds}, {at} of {len(chosen)}: {subject}", file=sys.stderr, flush=True)
                results[subject].append(run(bench, binary, subject, front, back, options.secs) | {"round": number})
    finally:
        compare.stop(upstream)
    return results


def run(bench, binary, subject, front, back, secs):
    """Measures one subject under load for one round. Returns its figures."""
    proxy, coding, body = parse(subject)
    port = make.free_port()
    process = compare.spawn(front, proxy_command(bench, proxy, coding, binary, port), bench)
    url = f"http://127.0.0.1:{port}/{body}"
    try:
        compare.await_port(process, port, bench)
        size, length = fetch(url, coding), os.path.getsize(os.path.join(bench.dir, "site", body))
        command = ["taskset", "-c", str(back), "wrk", "-t1", "-c16"]
        command += ["-H", f"Accept-Encoding: {coding}"] if coding else []
        make.output(command + ["-d1s", url])
        before = compare.cpu(process.pid)
        text = make.output(command + [f"-d{secs}s", url])
        used = compare.cpu(process.pid) - before
        requests = int(re.search(r"(\d+) requests in", text)[1])
        if requests == 0 or "Non-2xx" in text or "Socket errors" in text:
            raise make.Failed(f"{subject}: some requests failed:\n{text}\n{compare.logs(bench)}")
        return {"cpu": used / requests * 1e6, "size": size, "ratio": length / size, "rss": compare.peak_rss_mb(process.pid)}
    finally:
        compare.stop(process)


def fetch(url, coding):
    """Returns the size of the response as sent. Raises Failed if its coding is not `coding`."""
    headers = {"Accept-Encoding": coding} if coding else {}
    with urlopen(Request(url, headers=headers), timeout=10) as response:
        found = response.headers.get("Content-Encoding")
        if found != coding:
            raise make.Failed(f"{url}: the coding is {found}, not {coding}")
        return len(response.read())


def print_results(results, markdown):
    head, rule = "| {} | {} | {} | {} | {} | {} |", "|---|---|---|---|---|---|"
    row = head if markdown else "{:26}{:>10}{:>10}{:>9}{:>22}{:>8}"
    print(row.format("subject", "CPU us", "extra us", "ratio", "CPU / nginx gzip", "RSS MB"))
    if markdown:
        print(rule)
    for subject, rounds in results.items():
        if not rounds:
            continue
        proxy, _, body = parse(subject)
        cpu = statistics.median(figures["cpu"] for figures in rounds)
        extra = differences(rounds, results.get(name(proxy, None, body), []))
        ratios = compare.ratios(results, subject, name(*REFERENCE, body), "cpu")
        beside = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else ""
        rss = max(figures["rss"] for figures in rounds)
        print(row.format(subject, f"{cpu:.1f}", f"{extra:.1f}" if extra is not None else "", f"{rounds[0]['ratio']:.2f}", beside, f"{rss:.0f}"))


def differences(rounds, plain):
    """The median of the CPU beyond that of the proxy without compression."""
    pairs = [top["cpu"] - bottom["cpu"] for top, bottom in make.pair_rounds(rounds, plain)]
    return statistics.median(pairs) if pairs else None


if __name__ == "__main__":
    sys.exit(main())
