"""Variants that could not be warmed up: what is served, checked, timed and switched all the same."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.app_kit import Client, running
from tests.models.picky import PICKY
from tests.picky_kit import add, body, kept, write

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.errors import StartError
from tailcut.manifest import Manifest
from tailcut.models import variant_loader
from tailcut.models.variant_loader import open_variant
from tailcut.registry import Version
from tailcut.registry.rows import KeptRows
from tailcut.serving.deployment_loader import find_variant
from tailcut.serving.promotion import Follower
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

YEARS = PICKY["an index before the first"]
INFER = "/v2/models/picky/infer"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


# -- tailcut check and simulate ----------------------------------------------------------------------------------------


def test_check_sends_a_kept_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(write(folder, YEARS), kept(YEARS))
    assert run(["check"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "row           of the holdout, kept by the build" in out
    first = int(YEARS.rows(8)["year"][0])
    assert f"year INT64 [1]: {first}" in out
    assert f"y FP32 [1]: {first - 1949}" in out


def test_check_names_what_it_cannot_try(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, YEARS, overrides=["serve.variant=source"])
    assert run(["check", "--variant", "source", "--json"]) == ExitCode.OK
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["origin"] == "example tensors"
    assert found["ok"]
    assert [one["stage"] for one in found["untried"]] == ["infer"]
    assert found["warm_up_ms"] == {}
    assert found["outputs"] == []
    assert "not tried: infer; --row JSON tries every stage" in err


def test_check_does_not_hold_nan_for_an_invented_row_against_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mean over the tokens of a text without any."""
    graph = """mean (float[n, 2] x) => (float[n] y) {
        whole = ReduceSum <keepdims = 0> (x)
        part = ReduceMax <axes = [1], keepdims = 0> (x)
        y = Div (part, whole)
    }"""
    model = YEARS._replace(graph=graph, inputs='[{ name = "x", shape = [-1, 2], columns = ["a", "b"] }]')
    add(write(folder, model), None)
    assert run(["check"]) == ExitCode.OK
    assert "not tried     infer: the model fails on the invented row: the model returned NaN" in (
        capsys.readouterr().out
    )
    assert run(["check", "--row", '{"a": 0, "b": 0}']) == ExitCode.FAILED, "a row of one's own is another matter"
    add(write(folder, model), KeptRows({"x": np.array([[1, 3]], np.float32)}))
    assert run(["check"]) == ExitCode.OK
    assert "y FP32 [1]: 0.75" in capsys.readouterr().out


def test_check_of_a_row_of_ones_own_runs_the_model_that_was_not_warmed_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, YEARS)
    assert run(["check", "--variant", "source", "--row", '{"year": 1952}']) == ExitCode.OK
    assert 'answer        {"y":3.0}' in capsys.readouterr().out


# -- Executors and hooks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "chosen"), [("auto", "thread"), ("inline", "inline"), ("thread", "thread")])
def test_without_a_measurement_batches_run_off_the_event_loop(folder: Path, asked: str, chosen: str) -> None:
    manifest = write(folder, YEARS, overrides=["serve.variant=source", f"pool.executor={asked}"])
    warm = open_variant(manifest, find_variant(manifest))
    warm.close()
    assert warm.choice.executor == chosen


def test_an_executor_that_refuses_what_another_has_answered_is_broken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, broken = StubRuntime(), FaultyRuntime(StubRuntime())
    broken.fail(MemoryError("no memory"), times=100)
    waiting = iter([good, broken])
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: next(waiting))
    settings = ["serve.variant=source", "pool.executor=thread", "pool.executors=2"]
    manifest = write(folder, YEARS, overrides=settings)
    with pytest.raises(StartError, match=r"warm-up failed at 1 rows: .*no memory") as no:
        open_variant(manifest, find_variant(manifest))
    assert "another executor of this variant answered the same row" in no.value.hint
    assert good.closed


HOOK = """
SEEN = []

def postprocess(outputs):
    SEEN.append(outputs["y"].tolist())
    return [{"years": value} for value in outputs["y"].tolist()]
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_postprocess_is_measured_with_what_real_rows_become(folder: Path, keeps: bool) -> None:
    name = f"hooks_{keeps}"
    (folder / f"{name}.py").write_text(HOOK)
    manifest = write(folder, YEARS, overrides=[f"model.postprocess={name}:postprocess"])
    add(manifest, kept(YEARS) if keeps else None)

    async def main() -> None:
        async with running(manifest) as client:
            seen = sys.modules[name].SEEN
            first = float(YEARS.answer(YEARS.rows(8))[0])
            assert bool(seen) is keeps
            assert {value for batch in seen for value in batch} <= {first}
            reply = await client.post("/predict/picky", {"rows": [{"year": 1953}]})
            assert reply.json["predictions"] == [{"years": 4.0}]

    asyncio.run(main())


# -- Switches while requests are served --------------------------------------------------------------------------------


def follower(client: Client) -> Follower:
    found = client.app.engine.follower
    assert found is not None
    return found


def retrained(manifest: Manifest, keeps: bool, name: str, *, takes_any: bool = False) -> Version:
    """Add the same model under another hash, and promote it.

    Args:
        takes_any: it answers every year, so that an invented row warms it up.
    """
    graph = YEARS.graph.replace("years (", f"{name} (")
    if takes_any:
        graph = graph.replace("place = Sub (year, first)", "known = Max (year, first)\nplace = Sub (known, first)")
    path = YEARS._replace(graph=graph).save(manifest.directory / f"{name}.onnx")
    return add(manifest, kept(YEARS) if keeps else None, path)


Plan = list[tuple[bool, bool, bool]]
"""Whether each version that is promoted keeps rows, whether it takes any row, and whether it is served then."""


@pytest.mark.parametrize(
    "plan",
    [
        [(True, False, True), (True, False, True)],
        [(False, False, True), (False, False, True), (True, False, True)],
        [(True, False, True), (False, False, True), (True, False, True)],
        [(False, True, True), (False, False, False), (False, True, True), (True, False, True)],
    ],
    ids=["rows", "none", "rows, none and rows", "what answers an invented row gives way to what does, or has rows"],
)
def test_a_live_switch(folder: Path, plan: Plan) -> None:
    """What answers an invented row is not replaced by what refuses it; of real rows an invented one says nothing."""
    manifest = write(folder, YEARS)
    first = retrained(manifest, plan[0][0], "v0", takes_any=plan[0][1])

    async def main() -> None:
        async with running(manifest) as client:
            served = first.id
            for number, (keeps, takes_any, switches) in enumerate(plan[1:], start=1):
                version = retrained(manifest, keeps, f"v{number}", takes_any=takes_any)
                await follower(client).look()
                failure = follower(client).failure
                assert (failure is None) is switches
                if failure is not None:
                    assert "warm-up failed at 1 rows" in failure.message
                    assert "restart the server" in failure.hint
                served = version.id if switches else served
                request, expected = body(YEARS, number)
                reply = await client.post(INFER, request)
                assert (reply.json["model_version"], reply.json["outputs"][0]["data"]) == (served, [expected])

    asyncio.run(main())


def test_a_variant_is_loaded_by_name_under_the_same_rule(folder: Path) -> None:
    manifest = write(folder, YEARS, overrides=["server.management_tokens="])
    first = retrained(manifest, False, "v0", takes_any=True)

    async def main() -> None:
        async with running(manifest) as client:
            second = retrained(manifest, False, "v1")
            with pytest.raises(StartError, match="warm-up failed at 1 rows"):
                await client.app.engine.repository.load(version=second.id)
            third = retrained(manifest, True, "v2")
            await client.app.engine.repository.load(version=third.id)
            reply = await client.post(INFER, body(YEARS)[0])
            assert reply.json["model_version"] == third.id != first.id

    asyncio.run(main())


# -- Processes ---------------------------------------------------------------------------------------------------------


def test_a_process_that_an_invented_row_ends_is_started_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code of models may end the process on what it does not expect."""
    opened: list[StubRuntime] = []

    class Remote(StubRuntime):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(self._of)
            self.has_ended = False
            opened.append(self)

        def _of(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            if not inputs["year"].any():
                self.has_ended = True
                raise OSError("the process is gone")
            return {"y": inputs["year"] - 1949.0}

    monkeypatch.setattr(variant_loader, "RemoteRuntime", Remote)
    manifest = write(folder, YEARS, overrides=["serve.variant=source", "pool.executor=process", "pool.executors=2"])
    warm = open_variant(manifest, find_variant(manifest))
    assert [each.closed for each in opened] == [True, False, False]
    assert warm.runtimes == opened[1:]
