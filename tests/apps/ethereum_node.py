# /// script
# dependencies = ["web3==8.0.0"]
# [tool.apps]
# application = "Ethereum node (JSON-RPC)"
# version = "pypi:web3"
# client = "web3.py, ethers"
# npm = { ethers = "6.17.0" }
# debian = { node = "nodejs", npm = "npm" }
# ///
"""A node that answers calls and batches, with web3.py and ethers as clients."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
from harness import DIR, HOME, Gateway
from web3 import HTTPProvider, Web3

NODE = """
import { JsonRpcProvider, FetchRequest } from "ethers";

const request = new FetchRequest(process.argv[2]);
request.setHeader("x-api-key", "carl");
request.setThrottleParams({ maxAttempts: 1 });
const provider = new JsonRpcProvider(request, 1, { staticNetwork: true, batchMaxCount: 20, cacheTimeout: -1 });
// Sent together, these are one batch.
const numbers = await Promise.all(Array.from({ length: 8 }, () => provider.getBlockNumber()));
let calls = 0, error;
while (!error && calls < 20) {
  try {
    await provider.getLogs({ fromBlock: 1, toBlock: 2 });
    calls += 1;
  } catch (thrown) { error = thrown; }
}
console.log(JSON.stringify({ numbers, calls, error: String(error.code), info: JSON.stringify(error.info ?? error) }));
provider.destroy();
"""


class Node(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sizes = []

    def do_POST(self):
        calls = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = {"eth_getLogs": [], "eth_blockNumber": "0x10", "eth_chainId": "0x1", "eth_getBalance": "0x7"}

        def respond(call):
            return {"jsonrpc": "2.0", "id": call["id"], "result": results[call["method"]]}

        is_batch = isinstance(calls, list)
        Node.sizes.append(len(calls) if is_batch else 1)
        body = json.dumps([respond(call) for call in calls] if is_batch else respond(calls)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    gateway = Gateway("json-rpc.md", "An Ethereum node")
    server = ThreadingHTTPServer(("127.0.0.1", gateway.app_port), Node)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    options = {"headers": {"x-api-key": "anna", "content-type": "application/json"}}
    node = Web3(HTTPProvider(gateway.url, request_kwargs=options, exception_retry_configuration=None))
    assert node.eth.block_number == 16
    # A batch of ten: 100 of 600 units.
    with node.batch_requests() as batch:
        for _ in range(10):
            batch.add(node.eth.get_balance("0x" + "00" * 20))
        assert batch.execute() == [7] * 10
    assert Node.sizes == [1, 10], Node.sizes
    passed = 0
    try:
        for _ in range(10):
            node.eth.get_logs({"fromBlock": 1, "toBlock": 2})
            passed += 1
    except requests.HTTPError as error:
        refused = error.response
    assert passed == 6, passed
    error = refused.json()
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0, refused.headers
    assert error["error"]["code"] == -32029 and error["error"]["data"]["retry_after_ms"] > 0, error
    assert isinstance(error["id"], int), error
    gateway.expect(refused_by="credits")
    assert node.eth.block_number == 16, "a cheap call still fits"

    # A batch is refused whole, with an error for each call.
    logs = [{"jsonrpc": "2.0", "id": number, "method": "eth_getLogs", "params": [{}]} for number in range(2)]
    batch = requests.post(gateway.url, json=logs, headers=options["headers"])
    assert batch.status_code == 429 and [error["id"] for error in batch.json()] == [0, 1], batch.text

    (DIR / "client.mjs").write_text(NODE)
    (DIR / "node_modules").symlink_to(HOME / "node_modules")
    found = subprocess.run(["node", "client.mjs", gateway.url], cwd=DIR, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found
    found = json.loads(found.stdout)
    assert found["numbers"] == [16] * 8 and 8 in Node.sizes, (found, Node.sizes)
    # 80 of 600 units were for the batch, and 75 for each of these.
    assert found["calls"] == 6 and "429" in found["info"], found


main()
