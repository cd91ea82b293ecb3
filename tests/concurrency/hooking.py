"""User hooks that the tests control from outside: they wait, fail, or note where they ran."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from tests.app_kit import Client, deployment, running

from tailcut.common.tensors import Arrays

ROW = {"id": 1, "value": 2}
TENANT: ContextVar[str] = ContextVar("TENANT", default="none")
_PATIENCE_S = 30


class Control:
    """What the hooks below do. ``entered`` counts calls that wait at the closed gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.threads: list[str] = []
        self.rows: list[Any] = []
        self.tenants: list[str] = []
        self.fails: BaseException | None = None
        self.takes_s = 0.0

    def close(self) -> None:
        self.gate.clear()

    def open(self) -> None:
        self.gate.set()

    def pass_through(self, what: Any) -> None:
        self.threads.append(threading.current_thread().name)
        self.rows.append(what)
        self.tenants.append(TENANT.get())
        if not self.gate.is_set():
            self.entered.release()
            assert self.gate.wait(_PATIENCE_S)
        until_s = perf_counter() + self.takes_s
        while perf_counter() < until_s:
            pass
        if self.fails is not None:
            raise self.fails

    async def wait_entered(self, calls: int = 1) -> None:
        """Wait until that many more calls stand at the gate."""
        for _ in range(calls):
            assert await asyncio.to_thread(self.entered.acquire, timeout=_PATIENCE_S)

    @property
    def in_thread(self) -> bool:
        """Whether the last call ran in a thread of the hooks."""
        return self.threads[-1].startswith("tailcut-hook-")


control = Control()


def preprocess(rows: Sequence[Mapping[str, Any]]) -> Arrays:
    control.pass_through(rows)
    return {"x": np.array([[row["id"], row["value"]] for row in rows], np.float32)}


def postprocess(outputs: Arrays) -> list[Any]:
    control.pass_through(outputs)
    return outputs["y"].tolist()


def slow_postprocess(outputs: Arrays) -> list[Any]:
    """Compute for 2 ms."""
    control.pass_through(outputs)
    until_s = perf_counter() + 0.002
    while perf_counter() < until_s:
        pass
    return outputs["y"].tolist()


def fussy_postprocess(outputs: Arrays) -> list[Any]:
    """Refuse what the model makes of zeros, as a logarithm would."""
    control.pass_through(outputs)
    if not outputs["y"].all():
        raise ValueError("zero has no logarithm")
    return outputs["y"].tolist()


async def async_preprocess(rows: Sequence[Mapping[str, Any]]) -> Arrays:
    return preprocess(rows)


def serve(test: Callable[[Client], Any], directory: Path, *overrides: str, pre: str = "", post: str = "") -> None:
    """Run a test against an application whose hooks are those of this module, by name."""
    more = [f'model.{key}="tests.concurrency.hooking:{name}"' for key, name in _named(pre, post)]
    manifest = deployment(directory, overrides=[*more, *overrides])
    control.__init__()  # type: ignore[misc]

    async def main() -> None:
        try:
            async with running(manifest) as client:
                try:
                    await test(client)
                finally:
                    control.open()
        finally:
            control.open()

    asyncio.run(main())


def _named(pre: str, post: str) -> list[tuple[str, str]]:
    return [(key, name) for key, name in (("preprocess", pre), ("postprocess", post)) if name]


@asynccontextmanager
async def blocked(client: Client, requests: int = 1, **headers: str) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Send requests whose hooks stand at the closed gate; it opens at the end."""
    control.close()
    work = [asyncio.create_task(ask(client, **headers)) for _ in range(requests)]
    try:
        await control.wait_entered(requests)
        yield work
    finally:
        control.open()


async def ask(client: Client, *rows: Mapping[str, Any], **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/predict/m", {"rows": list(rows) or [ROW]}, named)


async def until_inline(client: Client) -> None:
    """Ask until a quick hook has shown that it is quick."""
    for _ in range(2000):
        assert (await ask(client)).status == 200
        if not control.in_thread:
            return
    raise AssertionError("it never came to the event loop")
