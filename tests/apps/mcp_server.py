# /// script
# dependencies = ["mcp==2.3.0"]
# [tool.apps]
# application = "MCP server (streamable HTTP)"
# version = "pypi:mcp"
# client = "official SDKs (PyPI, npm)"
# npm = { "@modelcontextprotocol/sdk" = "1.32.2" }
# debian = { node = "nodejs", npm = "npm" }
# ///
"""A server of the Model Context Protocol, with the official clients in Python and JavaScript, in both revisions: with a handshake
and sessions, and without."""

import asyncio
import json
import subprocess

import httpx2
from harness import DIR, HOME, VENV, Gateway, start, until
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

APP = """
import sys
from mcp.server import MCPServer

server = MCPServer("tools")

@server.tool()
def search(query: str) -> str:
    return f"found {query}"

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.resource("note://{name}")
def note(name: str) -> str:
    return f"note {name}"

server.run("streamable-http", port=int(sys.argv[1]))
"""

NODE = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const headers = { authorization: "Bearer carl" };
const transport = new StreamableHTTPClientTransport(new URL(process.argv[2]), { requestInit: { headers } });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);
let calls = 0, error;
while (!error && calls < 30) {
  try {
    const result = await client.callTool({ name: "search", arguments: { query: "x" } });
    if (result.content[0].text !== "found x") throw new Error("wrong result");
    calls += 1;
  } catch (thrown) { error = thrown; }
}
await new Promise((wake) => setTimeout(wake, 4000));
const later = await client.callTool({ name: "search", arguments: { query: "y" } });
console.log(JSON.stringify({ calls, message: error.message, session: transport.sessionId ?? null, later: later.content[0].text }));
await transport.terminateSession();
await client.close();
"""


def connect(gateway, key, mode):
    http_client = httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=20)
    return Client(streamable_http_client(f"{gateway.url}/mcp", http_client=http_client), mode=mode)


async def use(gateway, key, mode):
    """Calls tools until the limit refuses one; returns how many passed and the error."""
    async with connect(gateway, key, mode) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"search", "add"}
        assert (await client.read_resource("note://a")).contents[0].text == "note a"
        passed = 0
        try:
            for _ in range(30):
                found = await client.call_tool("search", {"query": "x"})
                assert found.content[0].text == "found x", found
                passed += 1
        except MCPError as error:
            refused = error.error
        # The session goes on: the same call passes once the stated wait is over, and another tool as well.
        await asyncio.sleep(refused.data["retry_after_ms"] / 1000)
        assert (await client.call_tool("search", {"query": "y"})).content[0].text == "found y"
        await asyncio.sleep(1)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
    return passed, refused


def main():
    gateway = Gateway("mcp.md", "Limit tools")
    (DIR / "app.py").write_text(APP)
    start([VENV / "python", DIR / "app.py", str(gateway.app_port)], gateway.app_port)

    # 100 units: some for the handshake, 5 for each search.
    for key, mode in [("anna", "legacy"), ("bert", "2026-07-28")]:
        passed, error = asyncio.run(use(gateway, key, mode))
        assert 16 <= passed <= 19, (mode, passed)
        assert error.code == -32029 and error.message == "request quota exceeded", error
        assert 0 < error.data["retry_after_ms"] <= 3000, error
    assert len(gateway.log(refused_by="calls")) >= 2
    until(lambda: gateway.log(method="DELETE", status=200), "the session of the older revision has ended")

    (DIR / "client.mjs").write_text(NODE)
    (DIR / "node_modules").symlink_to(HOME / "node_modules")
    node = subprocess.run(["node", "client.mjs", f"{gateway.url}/mcp"], cwd=DIR, capture_output=True, text=True, timeout=60)
    assert node.returncode == 0, node
    found = json.loads(node.stdout)
    assert 16 <= found["calls"] <= 19 and found["session"], found
    assert "request quota exceeded" in found["message"], found
    assert found["later"] == "found y", found

    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    nobody = gateway.fetch("/mcp", "POST", ping, content_type="application/json")
    assert nobody[0] == 403 and json.loads(nobody[2])["id"] == 1, nobody


main()
