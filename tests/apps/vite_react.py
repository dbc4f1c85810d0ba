# /// script
# dependencies = ["playwright==1.65.2"]
# [tool.apps]
# application = "Vite, React"
# version = "npm:vite"
# client = "Chromium"
# npm = { vite = "8.3.8", "@vitejs/plugin-react" = "6.3.0", react = "19.3.1", react-dom = "19.3.1" }
# debian = { node = "nodejs", npm = "npm", chromium = "chromium" }
# ///
"""Vite's server for development with React, in Chromium over HTTPS: an edit reaches the page, which keeps its state."""

import http.client
import shutil

from harness import DIR, HOME, Gateway, browser, start

FILES = {
    "index.html": '<div id="root"></div><script type="module" src="/main.jsx"></script>',
    "main.jsx": """
import { createRoot } from "react-dom/client";
import App from "./App.jsx";
createRoot(document.getElementById("root")).render(<App />);
""",
    "App.jsx": """
import { useState } from "react";
export default function App() {
    const [count, setCount] = useState(0);
    return <button onClick={() => setCount(count + 1)}>before {count}</button>;
}
""",
    "vite.config.js": 'import react from "@vitejs/plugin-react";\nexport default { plugins: [react()] };\n',
}


def main():
    gateway = Gateway("applications.md", "Vite")
    site = DIR / "site"
    site.mkdir()
    for name, text in FILES.items():
        (site / name).write_text(text)
    (site / "node_modules").symlink_to(HOME / "node_modules")
    shutil.copy(HOME / "package.json", site)
    server = ["node", "node_modules/vite/bin/vite.js", "--host", "127.0.0.1", "--strictPort"]
    start([*server, "--port", str(gateway.app_port)], gateway.app_port, name="vite", cwd=site)

    # Why the config has `upstream_host`: Vite refuses the host that the client asks for.
    direct = http.client.HTTPConnection("127.0.0.1", gateway.app_port)
    direct.request("GET", "/", headers={"host": gateway.host})
    response = direct.getresponse()
    assert response.status == 403 and b"Blocked request" in response.read()

    with browser() as page:
        page.goto(gateway.https_url)
        button = page.get_by_role("button")
        for _ in range(3):
            button.click()
        page.get_by_text("before 3").wait_for()
        (site / "App.jsx").write_text(FILES["App.jsx"].replace("before", "after"))
        page.get_by_text("after 3").wait_for()
    # The WebSocket is logged when it ends, with the browser.
    tunnel = gateway.expect(route="vite", status=101)
    assert tunnel["protocol"] == "HTTP/2.0", tunnel


main()
