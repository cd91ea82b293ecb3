from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.observe_kit import Ended, batch

from tailcut.common.timings import Timings
from tailcut.observe.recorder import ModelSinks
from tailcut.observe.sinks import FinishedBatch, FinishedRequest, Sinks, VariantSwitch


class Notes:
    """A sink that remembers everything."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.seen: list[tuple[object, ...]] = []
        self._error = error

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        self._note("requests", model, [each.route for each in requests])

    def on_batch(self, model: str, batch: FinishedBatch) -> None:
        self._note("batch", model, batch.rows, batch.duration_ns)

    def on_switch(self, model: str, switch: VariantSwitch) -> None:
        self._note("switch", model, switch)

    def _note(self, *what: object) -> None:
        self.seen.append(what)
        if self._error is not None:
            raise self._error


def ended(route: str = "infer") -> Ended:
    return Ended(Timings(0), route)


def test_a_sink_receives_what_each_model_finished() -> None:
    sinks, notes = Sinks(), Notes()
    a, b = ModelSinks("a", sinks), ModelSinks("b", sinks)
    sinks.add(notes)
    a.request(ended())
    a.request(ended("predict"))
    b.batch(batch(4, 100))
    a.flush()
    a.flush()
    assert notes.seen == [("batch", "b", 4, 100), ("requests", "a", ["infer", "predict"])]


def test_requests_that_ended_before_a_switch_are_received_before_it() -> None:
    sinks, notes = Sinks(), Notes()
    sinks.add(notes)
    model = ModelSinks("a", sinks)
    model.request(ended())
    model.switch(VariantSwitch("int8", "2", ("onnx", "1")))
    assert [what for what, *_ in notes.seen] == ["requests", "switch"]
    assert ("infer", "int8", "ok", "off") in model.metrics.requests


def test_many_requests_are_handed_over_before_anybody_asks() -> None:
    sinks, notes = Sinks(), Notes()
    sinks.add(notes)
    model = ModelSinks("a", sinks)

    async def main() -> None:
        for _ in range(1000):
            model.request(ended())
            await asyncio.sleep(0)

    asyncio.run(main())
    received = [len(routes) for _, _, routes in notes.seen if isinstance(routes, list)]
    assert sum(received) > 900
    assert max(received) <= 65


def test_a_request_is_handed_over_after_the_turn_of_the_loop_in_which_it_ended() -> None:
    """A sink that takes long must not delay the reply."""
    sinks, notes = Sinks(), Notes()
    sinks.add(notes)
    model = ModelSinks("a", sinks)

    async def main() -> None:
        for _ in range(200):
            model.request(ended())
        assert notes.seen == []
        await asyncio.sleep(0)
        assert len(notes.seen) == 1

    asyncio.run(main())


@dataclass
class Unhashable(Notes):
    """A dataclass has no hash."""

    error: BaseException

    def __post_init__(self) -> None:
        super().__init__(self.error)


@pytest.mark.parametrize("error", [ValueError("full"), asyncio.CancelledError()], ids=lambda each: type(each).__name__)
def test_whatever_a_sink_raises_stays_with_it(error: BaseException) -> None:
    sinks = Sinks()
    sinks.add(Unhashable(error))
    model = ModelSinks("a", sinks)
    for _ in range(2):
        model.batch(batch(1, 10))
    assert sinks.errors == 2


def test_a_sink_that_fails_hurts_no_other_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sinks, broken, notes = Sinks(), Notes(ValueError("no room")), Notes()
    sinks.add(broken)
    sinks.add(notes)
    model = ModelSinks("a", sinks)
    with caplog.at_level(logging.ERROR):
        model.request(ended())
        model.switch(VariantSwitch("onnx", "1"))
        model.batch(batch(1, 10))
    assert notes.seen == broken.seen
    assert len(notes.seen) == 3
    assert sinks.errors == 3
    assert [record.message for record in caplog.records] == ["the sink Notes failed; its later errors are only counted"]
    assert sum(model.metrics.requests.values()) == 1
