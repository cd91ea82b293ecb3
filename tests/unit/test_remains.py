"""Bodies that nobody waits for: they come in time, or are given up; none is kept once it has come."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from tailcut.server import remains
from tailcut.server.remains import Remains


class Body:
    def __init__(self, *, came: bool) -> None:
        self.came = came
        self.cancelled = False

    def done(self) -> bool:
        return self.came or self.cancelled

    def cancel(self) -> None:
        self.cancelled = True


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_does_not_come_is_given_up_and_what_has_come_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "_LOOK_S", 0.0)
    monkeypatch.setattr(remains, "_PATIENCE_S", 0.0)

    async def main() -> None:
        waits, came = Body(came=False), Body(came=True)
        expected = Remains()
        for body in (waits, came):
            expected.expect(body)
        await turns()
        assert waits.cancelled
        assert not came.cancelled
        later = Body(came=False)
        expected.expect(later)
        await turns()
        assert later.cancelled, "after a rest it is looked at again"

    asyncio.run(main())


def test_a_body_that_may_still_come_is_let_and_one_that_came_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "_LOOK_S", 0.0)

    async def main() -> None:
        waits, came = Body(came=False), Body(came=True)
        expected, kept = Remains(), weakref.ref(came)
        for body in (waits, came):
            expected.expect(body)
        del body, came
        await turns()
        assert not waits.cancelled
        assert kept() is None

    asyncio.run(main())
