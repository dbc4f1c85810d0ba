#!/usr/bin/env python3
"""A relay to a server on this machine that delays all data, as a long line does:

    delay_line.py PORT TARGET_PORT MILLISECONDS [MILLISECONDS]

The first delay is that of data to the server, the second that of data from it (default: the same).
Run by compare.py."""
import asyncio
import socket
import sys


async def relay(reader, writer, delay, loop):
    in_transit = asyncio.Queue()

    async def deliver():
        while (item := await in_transit.get()) is not None:
            due, data = item
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            writer.write(data)
        writer.close()

    delivery = asyncio.ensure_future(deliver())
    try:
        while data := await reader.read(65536):
            in_transit.put_nowait((loop.time() + delay, data))
    except OSError:
        pass
    in_transit.put_nowait(None)
    await delivery


async def main(port, target, to_target, from_target):
    loop = asyncio.get_running_loop()

    async def accept(reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        for end in (writer, far_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(relay(reader, far_writer, to_target, loop), relay(far_reader, writer, from_target, loop))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    delays = (float(ms) / 1000 for ms in (sys.argv[3:] * 2)[:2])
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *delays))
