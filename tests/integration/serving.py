"""``tailcut serve`` as a child process, and clients that see what it really does to their connections."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.app_kit import GOOD, INFER, deployment
from tests.integration.servers import free_port
from tests.warm import Started, can_fork, warm

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0
HOST = "127.0.0.1"


class Served:
    """A server of a small deployment; killed at the end whatever it does."""

    def __init__(
        self,
        directory: Path,
        more: str = "",
        settings: Sequence[str] = (),
        port: int = 0,
        wait: bool = True,
        prepared: bool = False,
        stderr: Path | None = None,
        python: Path | None = None,
        what: Sequence[str] = (),
    ) -> None:
        """Start it.

        It is a fork of a process that has imported tailcut, but where ``python`` is given.

        Args:
            python: of an environment of its own, which imports nothing of this checkout.
            what: arguments that name what is served; by default the manifest in ``directory``.
        """
        self.port = port or free_port()
        self._log = directory / f"serve-{self.port}.log"
        self._output = self._log.with_suffix(".out")
        if not prepared:
            deployment(directory, more)
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self._log.touch()
        with (stderr or self._log).open("wb") as log, self._output.open("wb") as output:
            served = what or ("--manifest", str(directory))
            arguments = ["serve", *served, "--port", str(self.port), *flags]
            environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
            self._process: Started | subprocess.Popen[bytes]
            if python is None and can_fork(environment):
                self._process = warm().start(
                    arguments, stdout=output.fileno(), stderr=log.fileno(), env=environment, cwd=Path.cwd()
                )
            else:
                if python is not None:
                    environment.pop("PYTHONPATH", None)
                self._process = subprocess.Popen(
                    [str(python or sys.executable), "-m", "tailcut", *arguments],
                    stdout=output,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self._kill()
                raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kill()

    @property
    def log(self) -> str:
        """What it has written to stderr so far."""
        return self._log.read_text()

    @property
    def output(self) -> str:
        """What it has written to stdout so far."""
        return self._output.read_text()

    @property
    def worker_pid(self) -> int:
        """Process id of its one worker."""
        return int(self._children.split()[0])

    @property
    def has_worker(self) -> bool:
        """Whether it has started its worker."""
        return bool(self._children)

    @property
    def _children(self) -> str:
        pid = self._process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()

    @property
    def worker_rss_bytes(self) -> int:
        """Resident memory of its worker."""
        pages = int(Path(f"/proc/{self.worker_pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def wait_ready(self) -> None:
        """Poll readiness until it is true, at most ``START_TIMEOUT_S``."""
        self.wait_until(lambda: self.get("/v2/health/ready")[0] == 200, START_TIMEOUT_S)

    def wait_until(self, condition: Any, timeout_s: float = END_TIMEOUT_S) -> None:
        """Poll a condition while the server runs; connections that are refused count as not yet."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                raise AssertionError(f"the server did not get there (exit code {self._process.poll()}):\n{self.log}")
            time.sleep(0.01)

    def get(self, path: str) -> tuple[int, Any]:
        """GET on a new connection: status and JSON."""
        status, _, body = self.request("GET", path)
        return status, json.loads(body)

    def post(self, path: str, body: Any = GOOD) -> tuple[int, Any]:
        """POST on a new connection: status and JSON."""
        status, _, raw = self.request("POST", path, body)
        return status, json.loads(raw)

    def metrics(self) -> str:
        """The page of metrics."""
        return self.request("GET", "/metrics")[2].decode()

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a new connection: status, headers by lower-case name, body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, path, raw, headers or {})
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def signal_group(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the supervisor and its worker, as a service manager or a terminal does."""
        os.killpg(self._process.pid, number)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the supervisor."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait(timeout_s)

    def _kill(self) -> None:
        if self._process.poll() is None:
            try:
                worker = self.worker_pid
            except (IndexError, OSError):
                worker = 0
            self._process.kill()
            if worker:
                os.kill(worker, signal.SIGKILL)
        self._process.wait(30)


def as_bytes(body: Any = GOOD, path: str = INFER, headers: str = "") -> bytes:
    """A whole HTTP/1.1 request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(raw)}\r\n{headers}\r\n".encode() + raw


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection(HOST, port))

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """Read one reply: status, headers, body; raises IncompleteReadError or ConnectionError where there is none."""
        async with asyncio.timeout(END_TIMEOUT_S):
            return await self._reply()

    async def _reply(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def ask(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Write a request and read its reply."""
        self.writer.write(raw)
        return await self.reply()

    async def close(self) -> None:
        """Close it."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    """A connection, closed at the end."""
    wire = await Wire.open(port)
    try:
        yield wire
    finally:
        await wire.close()
