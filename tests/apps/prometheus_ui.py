# /// script
# dependencies = ["playwright==1.65.2"]
# [tool.apps]
# application = "Prometheus"
# version = "debian:prometheus"
# client = "Chromium, promtool"
# debian = { prometheus = "prometheus", promtool = "prometheus", chromium = "chromium" }
# ///
"""Prometheus, in Chromium over HTTPS and with promtool: queries, a limit on them, and the closed administration."""

from harness import DIR, Gateway, browser, run, start, until


def main():
    gateway = Gateway("applications.md", "Prometheus")
    (DIR / "prometheus.yml").write_text(f"""
scrape_configs:
  - job_name: itself
    scrape_interval: 200ms
    scrape_timeout: 200ms
    static_configs: [{{ targets: ["127.0.0.1:{gateway.app_port}"] }}]
""")
    start(["prometheus", f"--config.file={DIR}/prometheus.yml", f"--storage.tsdb.path={DIR}/data",
           f"--web.listen-address=127.0.0.1:{gateway.app_port}", "--web.enable-lifecycle"], gateway.app_port)

    query = ["promtool", "query", "instant", gateway.url, 'up{job="itself"}']

    def is_answered():
        # A query that the limit still refuses is a failure to promtool.
        return "=> 1 @" in run(query, fails=None)

    until(is_answered, "Prometheus has scraped itself")
    with browser() as page:
        page.goto(f"{gateway.https_url}/graph?g0.expr=up&g0.tab=1")
        page.get_by_text("itself").first.wait_for()
    assert gateway.log(route="prometheus", protocol="HTTP/2.0", path="/api/v1/query")

    with gateway.flooded("Go-http-client/", "/api/v1/query?query=up"):
        report = run(query, fails=True)
        assert "client_error: client error: 429" in report, report
    until(is_answered, "the limit admits queries again")

    assert gateway.fetch("/-/reload", "POST")[0] == 403
    assert gateway.fetch("/api/v1/admin/tsdb/snapshot", "POST")[0] == 403


main()
