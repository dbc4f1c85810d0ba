"""A user of django_app.py, by httpx: `django_client.py URL CA-FILE`. Fails with a message if a result is wrong."""
import hashlib
import ssl
import sys

import httpx

url, ca = sys.argv[1:]
trust = ssl.create_default_context(cafile=ca)
for http2 in (True, False):
    with httpx.Client(http2=http2, verify=trust, base_url=url, timeout=20, trust_env=False, follow_redirects=True) as user:
        # Django adds a missing slash by a redirect to the same host.
        page = user.get("/form")
        assert [str(hop.url) for hop in page.history] == [f"{url}/form"] and str(page.url) == f"{url}/form/", page.history
        token = page.text.split('value="', 1)[1].split('"', 1)[0]
        form = {"csrfmiddlewaretoken": token, "name": "J\u00f6rg & co"}
        # Over TLS, Django accepts a form only from a page of its own host.
        me = user.post("/form/", data=form, headers={"referer": f"{url}/form/", "origin": url})
        assert me.status_code == 200, me.text
        assert me.json() == {"name": "J\u00f6rg & co", "secure": True, "uri": f"{url}/me/", "client": "127.0.0.1"}, me.text
        foreign = user.post("/form/", data=form, headers={"referer": "https://evil.test/", "origin": "https://evil.test"})
        assert foreign.status_code == 403, foreign.text
        body = bytes(range(251)) * 20_000
        result = user.post("/upload/", files={"file": ("\u00e4.bin", body)}).json()
        assert result == {"name": "\u00e4.bin", "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}, result
        assert user.get("/lines/").text == "".join(f"line {number}\n" for number in range(20_000))
