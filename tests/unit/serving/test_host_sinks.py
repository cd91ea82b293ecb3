from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.host_kit import add_models, host_of, running_host
from tests.wait_kit import until

from tailcut.observe.sinks import FinishedBatch, FinishedRequest, VariantSwitch


class Notes:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, str]] = []
        self.batches: list[tuple[str, str, int, int, int]] = []
        self.switches: list[tuple[str, str]] = []
        self.has_headers: list[bool] = []

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        self.requests += [(model, each.route, each.code, each.variant) for each in requests]
        self.has_headers += [each.headers is not None for each in requests]

    def on_batch(self, model: str, batch: FinishedBatch) -> None:
        self.batches.append((model, batch.variant, batch.rows, len(batch.inputs), len(batch.outputs)))

    def on_switch(self, model: str, switch: VariantSwitch) -> None:
        self.switches.append((model, switch.variant))


def test_a_sink_of_the_host_receives_what_every_model_finished(tmp_path: Path) -> None:
    async def main() -> None:
        notes = Notes()
        async with running_host(add_models(tmp_path, a=1.0, b=2.0)) as client:
            assert not notes.switches
            client.host.sinks.add(notes)
            await client.infer("a")
            await client.post("/v2/models/b/infer", {"inputs": []})
            await until(lambda: len(notes.requests) == 2)  # without anybody who reads the metrics
            assert sorted(notes.requests) == [("a", "infer", "ok", "source"), ("b", "infer", "bad_request", "source")]
            assert notes.batches == [("a", "source", 2, 1, 1)]
            assert (await client.unload("b")).status == 200
            assert (await client.load("b")).status == 200
            assert notes.switches == [("b", "source")]

    asyncio.run(main())


def test_what_ended_last_is_received_before_the_server_has_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        notes, client = Notes(), host_of(add_models(tmp_path, a=1.0))
        await client.app.start()
        client.host.sinks.add(notes)
        for _ in range(3):
            await client.infer("a")
        await client.app.stop()
        assert len(notes.requests) == 3

    asyncio.run(main())


def test_headers_are_kept_only_where_they_name_a_request_or_its_trace(tmp_path: Path) -> None:
    async def main() -> None:
        notes = Notes()
        async with running_host(add_models(tmp_path, a=1.0)) as client:
            client.host.sinks.add(notes)
            for name in ("x-other", "x-request-id", "traceparent"):
                await client.post("/v2/models/a/infer", {"inputs": []}, {name: "any"})
            await until(lambda: len(notes.requests) == 3)
            assert notes.has_headers == [False, True, True]

    asyncio.run(main())
