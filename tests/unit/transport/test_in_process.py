"""``tailcut.open``: the same answers, errors and counts as over HTTP, without a server."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import FEATURES, GOOD, INFER, deployment, running, samples
from tests.chain_kit import add_chain
from tests.wait_kit import until

import tailcut
from tailcut.common.tensors import Arrays
from tailcut.errors import (
    ArtifactError,
    BadRequest,
    DeadlineExceeded,
    InferenceError,
    ManifestError,
    NotReady,
    Shed,
    StartError,
    TailcutError,
    TooLarge,
    UnknownEntity,
)
from tailcut.models import variant_loader
from tailcut.observe.drift.detector import DriftSettings
from tailcut.observe.drift.sketch import sketches_of
from tailcut.observe.drift_sink import Watch
from tailcut.pipeline.pipeline import Pipeline
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime
from tailcut.transport.in_process import InProcessModel

ROW = {"id": 1, "value": 2}
X = np.array([[1, 2], [3, 4]], np.float32)
THREAD = (
    "pool.executor='thread'",
    "pool.executors=1",
    "pool.max_executors=1",
    "slo.timeout='30s'",
    "server.kill='60s'",
)
TEXTS = """
name = "m"
[model]
source = "model.onnx"
inputs = [{ name = "s", datatype = "BYTES", shape = [-1] }]
outputs = [{ name = "t", shape = [-1] }]
[serve]
variant = "source"
"""


@asynccontextmanager
async def opened(directory: Path, more: str = "", *overrides: str) -> AsyncIterator[InProcessModel]:
    async with tailcut.open(deployment(directory, more, overrides)) as model:
        yield model
        assert model.host.only.in_flight == {}


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


def counted(model: InProcessModel) -> dict[tuple[str, ...], float]:
    """Requests that have ended, by route, code and cache."""
    found = samples(model.metrics().decode(), "tailcut_requests_total")
    return {(route, code, cache): count for (route, _, code, cache), count in found.items()}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyRuntime:
    """The small model with faults on demand."""
    runtime = FaultyRuntime(StubRuntime(lambda inputs: {"y": inputs["x"].sum(axis=1), "z": inputs["x"] * 2}))
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    return runtime


# -- Drift -------------------------------------------------------------------------------------------------------------


def test_drift_compares_the_rows_of_each_call_where_a_caller_uses_its_arrays_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    async def work() -> None:
        async with opened(tmp_path) as model:
            serving, declared = model.host.only.pipeline.serving, model.host.only.deployment.model
            reference = {"x": random.normal(size=(1000, 2)).astype(np.float32)}
            sums = {"y": reference["x"].sum(axis=1), "z": reference["x"] * 2}
            sketches = (
                *sketches_of("input", declared.inputs, reference),
                *sketches_of("output", declared.outputs, sums),
            )
            watch = Watch(
                serving.name,
                serving.version,
                sketches,
                declared.inputs,
                declared.outputs,
                DriftSettings(),
                keeps_outputs=True,
            )
            drift = model.host.observed.drift
            drift.watch("m", watch)
            model.host.sinks.add(drift)
            drift.start()
            buffer = np.empty((4, 2), np.float32)
            for _ in range(250):
                buffer[:] = random.normal(size=(4, 2))
                found = await model.infer({"x": buffer})
                buffer[:] = 7.0
                for array in found.values():
                    array[:] = 7.0
            await until(lambda: (state := drift.state("m")) is not None and state.rows == 1000)
            state = drift.state("m")
            assert state is not None
            assert {column.name: column.psi for column in state.columns if column.psi > 0.05} == {}

    run(work)
    assert "tailcut-drift" not in {thread.name for thread in threading.enumerate()}


# -- Answers -----------------------------------------------------------------------------------------------------------


def test_answers_are_those_over_http(tmp_path: Path) -> None:
    rows = [ROW, {"value": 4, "id": 3}]
    columns = [{"id": np.float32(1.5), "value": np.int64(2)}]

    async def work() -> None:
        async with opened(tmp_path, FEATURES) as model, running(deployment(tmp_path, FEATURES)) as client:
            over_http = (await client.post("/predict/m", {"rows": rows})).json["predictions"]
            assert await model.predict(rows) == over_http
            assert await model.predict(columns) == [{"y": 3.5, "z": [3.0, 4.0]}]
            wanted = (await client.post("/predict/m", {"entities": [2, 1]})).json["predictions"]
            for _ in ("missing", "cached"):
                assert await model.predict(entities=[2, 1]) == wanted
            assert await model.predict(entities=[np.int64(2)]) == wanted[:1]
            outputs = {each["name"]: each for each in (await client.post(INFER, GOOD)).json["outputs"]}
            found = await model.infer({"x": X})
            assert list(found) == ["y", "z"]
            for name, array in found.items():
                assert array.dtype == np.float32
                assert list(array.shape) == outputs[name]["shape"]
                assert array.ravel().tolist() == outputs[name]["data"]
            assert list(await model.infer({"x": X}, outputs=["z"])) == ["z"]
            assert counted(model) == {
                ("local_predict", "ok", "off"): 2,
                ("local_predict", "ok", "miss"): 1,
                ("local_predict", "ok", "hit"): 2,
                ("local_infer", "ok", "off"): 2,
            }

    run(work)


def test_requests_that_wait_at_once_share_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = StubRuntime(lambda inputs: {"y": inputs["x"].sum(axis=1), "z": inputs["x"]})
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: stub)

    async def work() -> None:
        async with opened(tmp_path, "", *THREAD) as model:
            warm = len(stub.batches)
            answers = await asyncio.gather(*[model.infer({"x": np.full((1, 2), n, np.float32)}) for n in range(12)])
            assert [answer["y"].tolist() for answer in answers] == [[2.0 * n] for n in range(12)]
            assert sum(stub.rows[warm:]) == 12
            assert max(stub.rows[warm:]) == 4

    run(work)


def test_arrays_are_taken_in_any_layout_and_given_away(tmp_path: Path) -> None:
    cached = "[cache.tensor]\nenabled = true\n"

    async def work() -> None:
        async with opened(tmp_path, cached) as model:
            for array in (X, np.asfortranarray(X), X[::-1][::-1], X.astype(">f4"), np.repeat(X, 2, axis=0)[::2]):
                found = await model.infer({"x": array})
                assert found["y"].tolist() == [3.0, 7.0]
                assert found["y"].flags.owndata
                found["y"][:] = 0.0  # no part of what the cache has

    run(work)


def test_values_that_are_no_json_numbers_are_as_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = np.array([np.nan, np.inf], np.float32)

    def odd(inputs: Arrays) -> Arrays:
        return {"y": np.resize(made, len(inputs["x"])), "z": inputs["x"]}

    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: StubRuntime(odd))

    async def work() -> None:
        async with opened(tmp_path) as model:
            for asking in (model.infer({"x": X}), model.predict([ROW])):
                with pytest.raises(InferenceError, match="NaN or infinity in output 'y'"):
                    await asking
            assert list(await model.infer({"x": X}, outputs=["z"])) == ["z"]

    run(work)
    allowing = ["model.outputs=[{name='y',shape=[-1],allow_nan=true},{name='z',shape=[-1,2]}]"]

    async def allowed() -> None:
        async with opened(tmp_path, "", *allowing) as model, running(deployment(tmp_path, "", allowing)) as client:
            http = (await client.post("/predict/m", {"rows": [ROW, ROW]})).json["predictions"]
            assert await model.predict([ROW, ROW]) == http
            assert http[0]["y"] is None
            assert np.array_equal((await model.infer({"x": X}))["y"], made, equal_nan=True)

    run(allowed)


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = StubRuntime(lambda inputs: {"t": inputs["s"]})
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: echo)
    deployment(tmp_path)
    (tmp_path / "tailcut.toml").write_text(TEXTS)

    async def work() -> None:
        async with tailcut.open(tmp_path) as model:
            for array in (np.array(["a", "ö"]), np.array(["a", "ö".encode()], object)):
                assert (await model.infer({"s": array}))["t"].tolist() == ["a", "ö"]
            with pytest.raises(BadRequest, match="no UTF-8"):
                await model.infer({"s": np.array([b"\xff"])})

    run(work)


# -- Errors ------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any], type[TailcutError], str]] = [
    ("infer", {"inputs": {"x": X.astype(np.float64)}}, BadRequest, "input 'x' has datatype 'FP64', expected FP32"),
    ("infer", {"inputs": {"x": X.astype(complex)}}, BadRequest, "input 'x' has datatype 'complex128'"),
    ("infer", {"inputs": {"x": np.array(["a"])}}, BadRequest, "input 'x' has datatype 'BYTES'"),
    ("infer", {"inputs": {"x": [[1.0, 2.0]]}}, BadRequest, "input 'x' is a list, expected an array"),
    ("infer", {"inputs": {"x": X[0]}}, BadRequest, r"input 'x' has shape \[2\]"),
    ("infer", {"inputs": {"x": X.sum()}}, BadRequest, "input 'x' is a float32"),
    ("infer", {"inputs": {"x": X[:0]}}, BadRequest, "input 'x' has shape"),
    ("infer", {"inputs": {"x": X * np.nan}}, BadRequest, "input 'x' holds NaN"),
    ("infer", {"inputs": {"x": np.zeros((17, 2), np.float32)}}, TooLarge, "17 rows, the limit is 16"),
    ("infer", {"inputs": {"w": X}}, BadRequest, "input 'x' is missing; input 'w' is unknown"),
    ("infer", {"inputs": [X]}, BadRequest, "arrays by input name, not list"),
    ("infer", {"inputs": {"x": X}, "outputs": ["q"]}, BadRequest, "output 'q' is unknown"),
    ("infer", {"inputs": {"x": X}, "deadline_s": 0}, BadRequest, "deadline_s is 0"),
    ("infer", {"inputs": {"x": X}, "deadline_s": float("nan")}, BadRequest, "deadline_s is nan"),
    ("infer", {"inputs": {"x": X}, "deadline_s": "1"}, BadRequest, "deadline_s is '1', expected a number above 0"),
    ("predict", {"rows": [ROW], "deadline_s": [1]}, BadRequest, r"deadline_s is \[1\], expected a number"),
    ("infer", {"inputs": {"x": X}, "tenant": "ä"}, BadRequest, "the argument tenant"),
    ("infer", {"inputs": {"x": X}, "deadline_s": 1e-9}, DeadlineExceeded, "the deadline passed"),
    ("predict", {"rows": []}, BadRequest, "the list of rows is empty"),
    ("predict", {"rows": "abc"}, BadRequest, "rows is a str, expected a list"),
    ("predict", {"rows": ROW}, BadRequest, "row 0 is a str"),
    ("predict", {"rows": [ROW, {"id": 1}]}, BadRequest, "row 1: the field 'value' is missing"),
    ("predict", {"rows": [{"id": 1, "value": object()}]}, BadRequest, "the rows hold a value that JSON has not"),
    ("predict", {"rows": [ROW] * 17}, TooLarge, "17 rows exceed"),
    ("predict", {"rows": [ROW], "entities": [1]}, BadRequest, "either rows or entities"),
    ("predict", {}, BadRequest, "either rows or entities"),
    ("predict", {"entities": 1}, BadRequest, "entities is a int"),
    ("predict", {"entities": [100]}, UnknownEntity, "id=100"),
]


def test_errors_are_those_of_tailcut(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FEATURES) as model:
            for method, arguments, kind, says in WRONG:
                with pytest.raises(kind, match=says) as caught:
                    await getattr(model, method)(**arguments)
                assert caught.value.hint
            ended = counted(model)
            assert sum(ended.values()) == len(WRONG)
            assert not any(code in {"ok", "internal"} for _, code, _ in ended)

    run(work)


def test_a_bug_is_an_error_of_tailcut_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened(tmp_path) as model:
            with monkeypatch.context() as patch:
                patch.setattr(Pipeline, "infer", lambda *_: 1 / 0)
                with pytest.raises(TailcutError, match="unexpected ZeroDivisionError"):
                    await model.infer({"x": X})
            assert (await model.infer({"x": X}))["y"].tolist() == [3.0, 7.0]
            assert counted(model) == {("local_infer", "internal", "off"): 1, ("local_infer", "ok", "off"): 1}

    run(work)


def test_a_model_with_tenants_wants_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, FEATURES, 'server.tenant_header="x-tenant"') as model:
            with pytest.raises(BadRequest, match="the argument tenant is missing") as caught:
                await model.predict([ROW])
            assert "tenant=" in caught.value.hint
            for tenant in ("a", "b", "a"):
                await model.predict(entities=[1], tenant=tenant)
            assert counted(model)["local_predict", "ok", "miss"] == 2
            assert counted(model)["local_predict", "ok", "hit"] == 1

    run(work)


def test_an_error_keeps_nothing_of_its_request(tmp_path: Path, faulty: FaultyRuntime) -> None:
    """Without the garbage collector: in overload errors are what there is most of."""

    async def work() -> None:
        async with opened(tmp_path) as model:
            faulty.fail()
            array = X.copy()
            alive = weakref.ref(array)
            with suppress(InferenceError):
                await model.infer({"x": array})
            del array
            await asyncio.sleep(0)
            assert alive() is None

    gc.disable()
    try:
        run(work)
    finally:
        gc.enable()


# -- Waiting -----------------------------------------------------------------------------------------------------------


async def entered(runtime: FaultyRuntime) -> None:
    await until(runtime.entered.is_set)


def test_what_there_is_no_room_for_is_shed(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def work() -> None:
        async with opened(tmp_path, "", *THREAD) as model:
            faulty.hang()
            rows = np.zeros((4, 2), np.float32)
            asking = [asyncio.ensure_future(model.infer({"x": rows}))]
            await entered(faulty)
            asking += [asyncio.ensure_future(model.infer({"x": rows})) for _ in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(Shed) as caught:
                await model.infer({"x": X})
            assert caught.value.retry_after_s > 0
            faulty.release()
            assert [len((await each)["y"]) for each in asking] == [4] * 5
            assert counted(model) == {("local_infer", "ok", "off"): 5, ("local_infer", "shed", "off"): 1}

    run(work)


def test_a_deadline_ends_the_wait(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def work() -> None:
        async with opened(tmp_path, "", *THREAD) as model:
            faulty.hang()
            first = asyncio.ensure_future(model.infer({"x": X}))
            await entered(faulty)
            with pytest.raises(DeadlineExceeded):
                await model.predict([ROW], deadline_s=0.05)
            faulty.release()
            assert (await first)["y"].tolist() == [3.0, 7.0]
            codes = {code for route, code, _ in counted(model) if route == "local_predict"}
            assert codes <= {"queue_timeout", "deadline_exceeded"}

    run(work)


def test_cancelling_the_task_that_waits_drops_its_work_and_no_other(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def work() -> None:
        async with opened(tmp_path, "", *THREAD) as model:
            faulty.hang()
            first = asyncio.ensure_future(model.infer({"x": X}))
            await entered(faulty)
            left, stays = (asyncio.ensure_future(model.predict([ROW])) for _ in range(2))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await model.predict([ROW])
            faulty.release()
            assert (await first)["y"].tolist() == [3.0, 7.0]
            assert await stays == [{"y": 3.0, "z": [2.0, 4.0]}]
            assert counted(model) == {
                ("local_infer", "ok", "off"): 1,
                ("local_predict", "ok", "off"): 1,
                ("local_predict", "client_gone", "off"): 2,
            }

    run(work)


def test_a_close_fails_what_waits_and_lets_what_runs_end(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def work() -> None:
        model = tailcut.open(deployment(tmp_path, "", THREAD))
        async with model:
            faulty.hang()
            first = asyncio.ensure_future(model.infer({"x": X}))
            await entered(faulty)
            waiting = [asyncio.ensure_future(model.predict([ROW])) for _ in range(3)]
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, faulty.release)
        for each in waiting:
            with pytest.raises(NotReady):
                await each
        assert (await first)["y"].tolist() == [3.0, 7.0]
        assert not model.is_ready
        with pytest.raises(NotReady):
            await model.predict([ROW])
        assert counted(model)["local_predict", "not_ready", "off"] == 3

    run(work)


# -- Opening -----------------------------------------------------------------------------------------------------------


def test_before_it_is_open_a_model_is_not_ready(tmp_path: Path) -> None:
    deployment(tmp_path)

    async def work() -> None:
        model = tailcut.open(tmp_path, overrides=["batching.max_rows=2"])
        assert not model.is_ready
        with pytest.raises(NotReady, match="model 'm' is not open") as early:
            await model.predict([ROW])
        assert "async with" in early.value.hint
        async with model:
            assert model.is_ready
            assert model.host.only.deployment.batching.max_rows == 2
            assert isinstance(model, tailcut.InProcessModel)
        with pytest.raises(StartError, match="opened before"):
            await model.__aenter__()
        for call in (model.predict([ROW]), model.infer({"x": X})):
            with pytest.raises(NotReady, match="model 'm' is not open any more"):
                await call

    run(work)


def test_a_model_is_asked_on_the_event_loop_that_opened_it(tmp_path: Path) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with opened(tmp_path) as model:
            with pytest.raises(TailcutError, match="was opened on another event loop") as caught:
                await asyncio.to_thread(asyncio.run, model.predict([ROW]))
            assert "run_coroutine_threadsafe" in caught.value.hint

            def handed() -> list[Any]:
                return asyncio.run_coroutine_threadsafe(model.predict([ROW]), loop).result(30)

            assert len(await asyncio.to_thread(handed)) == 1
            assert sum(counted(model).values()) == 1

    run(work)


def test_overrides_are_a_list(tmp_path: Path) -> None:
    deployment(tmp_path)
    for make in (tailcut.open, tailcut.asgi):
        with pytest.raises(ManifestError, match=r"overrides is the text 'slo\.timeout=1s'") as caught:
            make(tmp_path, overrides="slo.timeout=1s")
        assert caught.value.hint == "write overrides=['slo.timeout=1s']"


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    manifest = deployment(tmp_path)
    (tmp_path / "model.onnx").unlink()

    async def work() -> None:
        with pytest.raises(TailcutError, match=r"model\.onnx"):
            async with tailcut.open(manifest):
                pass

    run(work)


def test_two_models_in_one_process(tmp_path: Path) -> None:
    async def work() -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
            assert await first.predict([ROW]) == await second.predict([ROW])
            assert counted(first) == counted(second) == {("local_predict", "ok", "off"): 1}

    run(work)


def test_a_model_is_opened_with_the_one_that_computes_its_features(tmp_path: Path) -> None:
    folder = add_chain(tmp_path)

    async def main() -> None:
        async with tailcut.open(folder / "parent", folder / "child") as model:
            assert await model.predict(entities=["abc"]) == [{"y": [60.0, 20.0, 10.0, 1000.0]}]
        async with tailcut.open(folder, model="child") as model:
            assert await model.predict([{"text": "abc"}]) == [{"embedding": [6.0, 2.0, 1.0]}]

    asyncio.run(main())


def test_a_model_that_computes_features_and_was_not_given_is_named(tmp_path: Path) -> None:
    folder = add_chain(tmp_path)
    with pytest.raises(ManifestError, match="its columns come from model 'child', which was not given") as error:
        tailcut.open(folder / "parent")
    assert error.value.hint == f'pass "{folder / "child" / "tailcut.toml"}" to tailcut.open as well'


def test_a_model_that_computes_features_and_cannot_be_loaded_ends_the_opening(tmp_path: Path) -> None:
    folder = add_chain(tmp_path)
    (folder / "child" / "model.onnx").unlink()

    async def main() -> None:
        with pytest.raises(ArtifactError, match="does not exist"):
            await tailcut.open(folder).__aenter__()

    asyncio.run(main())
