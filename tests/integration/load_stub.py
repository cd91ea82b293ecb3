"""A tiny HTTP server whose behaviour is in the path; run as a process, prints its port.

/delay/MS       answers after MS milliseconds, any number at once
/serial/MS      one request at a time, each takes MS milliseconds: capacity 1000/MS per second
/admit/RATE     answers so many a second at once, and sheds the others with 429
/stall/MS       blocks the whole server for MS milliseconds
/status/CODE    answers with that status
/timing         answers with Server-Timing and X-Tailcut-Cache
/close          answers with Connection: close
/eof            closes the connection without an answer
/second         answers the first request of each connection, and closes it on the second without a word
/crash/MS       answers the first request of each connection, and closes it MS milliseconds after the second
/gone           answers the first request of all, and on the next one closes every door
/first          answers the first request of all, and closes the connection on every other without a word
/hang           never answers
/garbage        answers something that is not HTTP
/until-eof      answers without a length and closes
/serial-health  200 (readiness)
"""

from __future__ import annotations

import asyncio
import sys
import time

import httptools

_REASONS = {200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}


class Server:
    listener: asyncio.Server

    def __init__(self) -> None:
        self.busy_until_s = 0.0
        self.requests = 0
        self.tokens, self.filled_s = 0.0, 0.0

    def answer_in_s(self, kind: str, argument: float, now_s: float) -> float:
        if kind == "delay":
            return argument / 1000
        if kind == "serial":
            self.busy_until_s = max(now_s, self.busy_until_s) + argument / 1000
            return self.busy_until_s - now_s
        return 0.0

    def admits(self, rate: float, now_s: float) -> bool:
        self.tokens = min(rate / 10, self.tokens + (now_s - self.filled_s) * rate)
        self.filled_s = now_s
        admitted = self.tokens >= 1
        self.tokens -= admitted
        return admitted


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        self.requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_message_complete(self) -> None:
        _, kind, argument = (self.path + "/0").split("/")[:3]
        self.requests += 1
        self.server.requests += 1
        mine, all_of_them = self.requests, self.server.requests
        before = {"second": mine, "crash": mine, "first": all_of_them, "gone": all_of_them}.get(kind, 1) - 1
        if kind == "gone" and before:
            self.server.listener.close()
        if kind == "eof" or before:
            asyncio.get_running_loop().call_later(float(argument) / 1000, self.transport.close)
        elif kind == "stall":
            time.sleep(float(argument) / 1000)
            self.reply()
        elif kind == "garbage":
            self.transport.write(b"I am not HTTP\r\n\r\n")
        elif kind == "until-eof":
            self.transport.write(b"HTTP/1.1 200 OK\r\n\r\nbody without a length")
            self.transport.close()
        elif kind == "status":
            self.reply(int(argument), b'{"error": "as asked"}')
        elif kind == "admit":
            admitted = self.server.admits(float(argument), asyncio.get_running_loop().time())
            self.reply(200 if admitted else 429)
        elif kind == "close":
            self.reply(headers="Connection: close\r\n")
            self.transport.close()
        elif kind == "timing":
            self.reply(
                headers="Server-Timing: queue;dur=1.500, infer;dur=2.500, total;dur=4.000\r\nX-Tailcut-Cache: hit\r\n"
            )
        elif kind != "hang":
            loop = asyncio.get_running_loop()
            delay_s = self.server.answer_in_s(kind, float(argument), loop.time())
            loop.call_later(delay_s, self.reply)

    def reply(self, status: int = 200, body: bytes = b"{}", headers: str = "") -> None:
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.transport.write(head.encode() + body)


async def main() -> None:
    server = Server()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    loop = asyncio.get_running_loop()
    server.listener = listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", port)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
