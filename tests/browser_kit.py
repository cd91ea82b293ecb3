"""Headless Chromium for tests: pages opened and read over the DevTools protocol; errors of the console are collected.

Source: https://chromedevtools.github.io/devtools-protocol/ (flat sessions).
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
_START_S = 60.0
_REPLY_S = 30.0


class Navigated(Exception):
    """The tab went to another page while a script ran."""


class Page:
    """A tab.

    Attributes:
        errors: what the console and the network reported as errors.
    """

    def __init__(self, socket: ClientConnection, session: str, pages: dict[str, Page]) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._session = session
        self._pages = pages
        pages[session] = self
        self._numbers = itertools.count(10)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command; return its result."""
        number = next(self._numbers)
        message = {"id": number, "sessionId": self._session, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            found = json.loads(self._socket.recv(timeout=_REPLY_S))
            self._pages[found["sessionId"]]._note(found)
            if found.get("id") == number and found["sessionId"] == self._session:
                if "navigated" in found.get("error", {}).get("message", ""):
                    raise Navigated
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def open(self, url: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return what an expression yields."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str, timeout_s: float = 20.0) -> Any:
        """Return what an expression yields once that is true."""
        ends_s = time.monotonic() + timeout_s
        while not (found := self._tried(script)):
            assert time.monotonic() < ends_s, f"not within {timeout_s} s: {script}; the console said {self.errors}"
            time.sleep(0.05)  # takes time: a page is drawn
        return found

    def _tried(self, script: str) -> Any:
        try:
            return self.run(script)
        except Navigated:
            return None

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Have a screen of another size or colour scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def save(self, path: Path) -> None:
        """Write a picture of the whole page as PNG."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def _note(self, found: dict[str, Any]) -> None:
        parameters = found.get("params", {})
        match found.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
            case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "warning", "assert"}:
                self.errors.append(str([each.get("value") for each in parameters["args"]]))
            case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
                self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case _:
                pass


@contextmanager
def browser(profile: Path) -> Iterator[Callable[[], Page]]:
    """A browser with an empty profile; yields what opens a tab."""
    assert CHROMIUM is not None
    with (
        subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            with connect(_address(profile, process), max_size=None, proxy=None) as socket:
                pages: dict[str, Page] = {}
                yield lambda: _tab(socket, pages)
        finally:
            process.kill()


def _tab(socket: ClientConnection, pages: dict[str, Page]) -> Page:
    target = _ask(socket, pages, 1, "Target.createTarget", url="about:blank")["targetId"]
    session = _ask(socket, pages, 2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    return Page(socket, session, pages)


def _ask(socket: ClientConnection, pages: dict[str, Page], number: int, method: str, **parameters: Any) -> Any:
    socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
    while True:
        found = json.loads(socket.recv(timeout=_REPLY_S))
        if found.get("sessionId") in pages:
            pages[found["sessionId"]]._note(found)
        elif found.get("id") == number:
            return found["result"]


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    file, ends_s = profile / "DevToolsActivePort", time.monotonic() + _START_S
    while not (file.exists() and len(file.read_text().splitlines()) == 2):
        assert process.poll() is None, "chromium did not start"
        assert time.monotonic() < ends_s, f"chromium was not ready after {_START_S} s"
        time.sleep(0.05)  # takes time: a process starts
    port, path = file.read_text().splitlines()
    return f"ws://127.0.0.1:{port}{path}"
