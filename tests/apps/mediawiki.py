# /// script
# dependencies = ["playwright==1.65.2"]
# [tool.apps]
# application = "MediaWiki"
# version = "debian:mediawiki"
# client = "Chromium"
# [tool.apps.debian]
# chromium = "chromium"
# php = "php-cli"
# "/usr/share/mediawiki/index.php" = "mediawiki"
# "/var/lib/dpkg/info/php-sqlite3.list" = "php-sqlite3"
# ///
"""MediaWiki on SQLite, in Chromium over HTTPS: wrong passwords until the limit, the wait, the login, and an edit."""

import time

from harness import DIR, Gateway, browser, run, start

WIKI = "/usr/share/mediawiki"


def main():
    gateway = Gateway("applications.md", "MediaWiki")
    settings = DIR / "LocalSettings.php"
    # The files of the package stay as they are: they may serve a wiki of this machine.
    environment = {"MW_CONFIG_FILE": str(settings), "PHP_CLI_SERVER_WORKERS": "4"}
    run(["php", "maintenance/install.php", "--dbtype=sqlite", f"--dbpath={DIR}", f"--confpath={DIR}", "--scriptpath=",
         f"--server={gateway.https_url}", "--pass=the right one", "Wiki", "Anna"], cwd=WIKI, env=environment)
    with open(settings, "a") as file:
        file.write(f"\n$wgCdnServersNoPurge = ['127.0.0.1'];\n$wgCacheDirectory = '{DIR}';\n")
    start(["php", "-S", f"127.0.0.1:{gateway.app_port}", "-t", WIKI], gateway.app_port, cwd=WIKI, env=environment)

    with browser() as page:
        for script in ["/index.php", "/", "/index.php/Special:UserLogin", "//index.php", "/x/.."]:
            login(page, gateway, "a wrong one", script)
            page.get_by_text("Incorrect username or password entered").wait_for()
        login(page, gateway, "a wrong one")
        page.get_by_text("Try again in").wait_for()
        wait = int(page.inner_text("body").split("Try again in ")[1].split()[0])
        assert 0 < wait <= 60, wait
        time.sleep(wait)
        login(page, gateway, "the right one")
        page.get_by_role("link", name="Log out").first.wait_for(state="attached")
        assert all(cookie["secure"] for cookie in page.context.cookies()), page.context.cookies()

        page.goto(f"{gateway.https_url}/index.php?title=Test&action=edit")
        page.fill("#wpTextbox1", "Written through the gateway.")
        page.click("#wpSave")
        page.locator(".mw-parser-output").get_by_text("Written through the gateway.").wait_for()
    refused = gateway.expect(refused_by="logins")
    assert refused["status"] == 429 and refused["method"] == "POST", refused


def login(page, gateway, password, script="/index.php"):
    """Sends the login form to one of the addresses at which MediaWiki accepts it."""
    page.goto(f"{gateway.https_url}/index.php?title=Special:UserLogin")
    page.fill("#wpName1", "Anna")
    page.fill("#wpPassword1", password)
    action = f"{gateway.https_url}{script}?title=Special:UserLogin"
    page.evaluate("action => { document.forms.userlogin.action = action }", action)
    page.click("#wpLoginAttempt")


main()
