# /// script
# [tool.apps]
# application = "Socket.IO"
# version = "npm:socket.io"
# client = "socket.io-client"
# npm = { "socket.io" = "4.8.4", "socket.io-client" = "4.8.4" }
# debian = { node = "nodejs", npm = "npm" }
# ///
"""A Socket.IO server and its client for Node: polling, the upgrade, WebSocket alone, and one connection too many."""

import json

from harness import HOME, Gateway, run, start

SERVER = """
const { Server } = require("socket.io");
const io = new Server(Number(process.argv[1]), {});
io.on("connection", (socket) => socket.on("echo", (text, reply) => reply(text + " " + socket.conn.transport.name)));
"""

CLIENT = """
const { io } = require("socket.io-client");
const connect = (options) => new Promise((resolve, reject) => {
    const socket = io(process.argv[1], { forceNew: true, reconnection: false, ...options });
    socket.on("connect", () => resolve(socket));
    socket.on("connect_error", (error) => reject(error));
});
const echo = (socket) => socket.timeout(5000).emitWithAck("echo", "hello");
const upgraded = (socket) => new Promise((resolve) => {
    if (socket.io.engine.transport.name === "websocket") return resolve();
    socket.io.engine.once("upgrade", resolve);
});
(async () => {
    const report = {};
    const polling = await connect({ transports: ["polling"] });
    report.polling = await echo(polling);

    const sockets = [await connect({})];
    await upgraded(sockets[0]);
    report.upgraded = await echo(sockets[0]);
    for (let i = 0; i < 2; i++) sockets.push(await connect({ transports: ["websocket"] }));
    report.websocket = await echo(sockets[2]);

    // Three are open: the next one is refused, and a client that may poll continues to poll.
    report.fourth = await connect({ transports: ["websocket"] }).catch((error) => error.description.message);
    const fallback = await connect({});
    await new Promise((resolve) => setTimeout(resolve, 500));
    report.fallback = await echo(fallback);

    // One leaves, and the next one gets in.
    sockets[0].disconnect();
    for (let tries = 0; !report.next && tries < 50; tries++) {
        await new Promise((resolve) => setTimeout(resolve, 100));
        report.next = await connect({ transports: ["websocket"] }).then(echo, () => null);
    }
    console.log(JSON.stringify(report));
    process.exit(0);
})();
"""


def main():
    gateway = Gateway("applications.md", "Socket.IO")
    start(["node", "-e", SERVER, str(gateway.app_port)], gateway.app_port, cwd=HOME)
    report = json.loads(run(["node", "-e", CLIENT, gateway.url], cwd=HOME))
    assert report == {
        "polling": "hello polling",
        "upgraded": "hello websocket",
        "websocket": "hello websocket",
        "fourth": "Unexpected server response: 429",
        "fallback": "hello polling",
        "next": "hello websocket",
    }, report
    gateway.expect(status=429, refused_by="open-sockets")


main()
