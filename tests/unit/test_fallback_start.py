"""The variant to serve beside what stands in for it: how it is warmed up, and what happens where that fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import Client
from tests.unit.test_fallback_variant import answered_by, serve

from tailcut.core.tensors import Arrays
from tailcut.engine import seating
from tailcut.engine.warming import WARM_UP_RUNS
from tailcut.runtimes import Runtime, open_runtime


class Disturbed:
    """As quick as its model once in as many calls as a warm-up makes of a batch size; others take the processor."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls = 0

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self._calls += 1
        if self._calls % WARM_UP_RUNS:
            time.sleep(0.003)
        return self._runtime.run(inputs, outputs)

    def close(self) -> None:
        self._runtime.close()


def test_what_loads_beside_its_fallback_is_judged_by_its_least_disturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(variant: Any, **options: Any) -> Runtime:
        runtime = open_runtime(variant, **options)
        return Disturbed(runtime) if variant.name == "slow" else runtime

    async def test(client: Client) -> None:
        await answered_by(client, "slow")
        config = (await client.get("/v2/models/m/config")).json
        assert config["parameters"]["executor"] == {"string_value": "inline"}

    monkeypatch.setattr(seating, "open_runtime", opened)
    serve(tmp_path, test, '["fast"]', pool="{executors=1}")
