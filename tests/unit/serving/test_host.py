"""Several models in one server: their states, loading and unloading each beside the others, and what is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.app_kit import FEATURES, Answer
from tests.host_kit import HostClient, Runtimes, add_model, add_models, host_of, running_host
from tests.promotion_kit import Promotions, save_model
from tests.promotion_kit import deployment as promoted
from tests.wait_kit import until

from tailcut.errors import NotFound, NotReady, TailcutError
from tailcut.logs import formatter
from tailcut.serving import host as host_module
from tailcut.serving.host_state import LoadingMemory

Test = Callable[[HostClient], Awaitable[None]]
THREAD = ("pool.executor=thread", "pool.executors=1", "slo.timeout=20s", "server.kill=30s")
BROKEN = "[slo]\np95 = 5\n"


def serve(test: Test, *paths: Path, overrides: Sequence[str] = ()) -> None:
    async def main() -> None:
        async with running_host(*paths, overrides=overrides) as client:
            await test(client)

    asyncio.run(main())


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> Runtimes:
    return Runtimes(monkeypatch)


def mend(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# -- States and readiness ----------------------------------------------------------------------------------------------


def test_each_model_answers_under_its_name(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        assert [await client.factor(name) for name in ("a", "b", "c")] == [1.0, 2.0, 3.0]
        assert await client.states() == {"a": "ready", "b": "ready", "c": "ready"}
        ready = await client.get("/v2/health/ready")
        assert (ready.status, ready.json["ready"], ready.json["state"]) == (200, True, "ready")
        assert (await client.get("/v2/models/b")).json["name"] == "b"
        assert (await client.get("/v2/models/b/config")).json["name"] == "b"
        assert (await client.get("/v2/models/b/ready")).json == {"name": "b", "ready": True}
        assert (await client.get("/v2/models/b/versions/source/ready")).status == 200
        stats = (await client.get("/v2/models/stats")).json["model_stats"]
        assert [each["name"] for each in stats] == ["a", "b", "c"]
        reply = await client.post("/predict/c", {"rows": [{"id": 1, "value": 2}]})
        assert reply.json["model"] == "c"
        assert {name: state for name, (state, _) in (await client.index()).items()} == dict.fromkeys("abc", "READY")
        described = (await client.get("/openapi.json")).json
        paths = described["paths"]
        assert described["info"]["title"] == "tailcut"
        assert {"/v2/models/a/infer", "/v2/models/b/infer", "/predict/c"} <= set(paths)

    serve(test, add_models(tmp_path, a=1.0, b=2.0, c=3.0))


def test_a_model_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        for reply in (await client.infer("x"), await client.load("x"), await client.unload("x")):
            assert (reply.status, reply.json["error"]) == (404, "model 'x' is unknown")
            assert reply.json["hint"] == "this server has 'a', 'b'"

    serve(test, add_models(tmp_path, a=1.0, b=2.0))


def test_models_are_loaded_side_by_side_and_each_serves_as_soon_as_it_is_ready(
    tmp_path: Path, runtimes: Runtimes
) -> None:
    async def main() -> None:
        runtimes.hold("a")
        runtimes.hold("b")
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        starting = asyncio.ensure_future(client.app.start())
        await until(lambda: sorted(set(runtimes.entered)) == ["a", "b"])
        assert await client.states() == {"a": "loading", "b": "loading"}
        refused = await client.infer("b")
        assert (refused.status, refused.json["error"]) == (503, "model 'b' is loading and warming up")
        runtimes.let("b")
        await until(lambda: client.host.engine("b").is_ready)
        assert (await client.infer("b")).status == 200
        assert await client.states() == {"a": "loading", "b": "ready"}
        assert not client.host.is_ready
        assert (await client.get("/v2/health/ready")).json["state"] == "loading"
        assert (await client.index())["a"] == ("UNAVAILABLE", "loading")
        runtimes.let("a")
        await starting
        assert client.host.is_ready
        await client.app.stop()
        assert runtimes.open_now == {}

    asyncio.run(main())


def test_only_required_models_decide_over_the_host(tmp_path: Path, runtimes: Runtimes) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    (tmp_path / "host.toml").write_text('[[models]]\npath = "a"\n[[models]]\npath = "b"\nrequired = false\n')
    runtimes.broken.add("b")

    async def test(client: HostClient) -> None:
        assert await client.states() == {"a": "ready", "b": "failed"}
        assert (await client.get("/v2/health/ready")).status == 200
        assert (await client.get("/v2/models/b/ready")).status == 503
        await client.unload("a")
        found = await client.get("/v2/health/ready")
        assert (found.status, found.json["state"]) == (503, "unloaded")

    serve(test, tmp_path)


@pytest.mark.parametrize("how", ["manifest", "artifact", "runtime"])
def test_a_model_that_fails_leaves_the_others_serving(
    tmp_path: Path, how: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    reason = {"manifest": "slo.p95: 5 has no unit", "artifact": "does not exist", "runtime": "b cannot be opened"}[how]
    if how == "manifest":
        mend(tmp_path / "b" / "tailcut.toml", "[model]", f"{BROKEN}[model]")
    elif how == "artifact":
        (tmp_path / "b" / "model.onnx").unlink()
    else:
        request.getfixturevalue("runtimes").broken.add("b")

    async def test(client: HostClient) -> None:
        assert (await client.infer("a")).status == 200
        assert await client.states() == {"a": "ready", "b": "failed"}
        assert reason in (await client.reasons())["b"]
        index = await client.index()
        assert index["a"][0] == "READY"
        assert index["b"][0] == "UNAVAILABLE"
        assert reason in index["b"][1]
        ready = await client.get("/v2/health/ready")
        assert (ready.status, ready.json["state"]) == (503, "failed"), "all models of a folder are required"
        for reply in (await client.infer("b"), await client.get("/v2/models/b")):
            assert reply.status == 503
            assert reply.json["error"].startswith("model 'b' failed to load: ")
            assert reason in reply.json["error"]
            assert reply.json["hint"]
        (line,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert reason in line.getMessage()
        assert getattr(line, "model", "") == "b"
        assert (await client.get("/metrics")).status == 200
        assert (await client.unload("b")).status == 200
        assert (await client.infer("a")).status == 200

    serve(test, tmp_path)


def test_a_host_whose_models_all_fail_does_not_start(tmp_path: Path, runtimes: Runtimes) -> None:
    runtimes.broken |= {"a", "b"}

    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        with pytest.raises(TailcutError, match="a cannot be opened"):
            await client.app.start()
        await client.app.stop()

    asyncio.run(main())


# -- Loading -----------------------------------------------------------------------------------------------------------


def test_a_failed_model_is_loaded_after_its_manifest_was_mended(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)
    file = add_model(tmp_path, "b", 2.0, BROKEN)

    async def test(client: HostClient) -> None:
        refused = await client.load("b")
        assert (refused.status, refused.json["code"]) == (500, "bad_manifest")
        assert "slo.p95" in refused.json["error"]
        mend(file, "p95 = 5", "p9 = 5")
        assert "slo.p9" in (await client.load("b")).json["error"], "the manifest as it is by now"
        assert "slo.p9:" in (await client.reasons())["b"]
        mend(file, "p9 = 5", 'p95 = "50ms"')
        assert (await client.load("b")).status == 200
        assert await client.factor("b") == 2.0
        assert await client.states() == {"a": "ready", "b": "ready"}
        assert await client.reasons() == {}
        assert client.host.is_ready

    serve(test, tmp_path)


def test_a_mended_manifest_may_bring_a_name_of_its_own(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)
    file = add_model(tmp_path, "second", 2.0, BROKEN, directory="b")

    async def test(client: HostClient) -> None:
        assert await client.states() == {"a": "ready", "b": "failed"}
        mend(file, BROKEN, "")
        assert (await client.load("b")).status == 200
        assert await client.states() == {"a": "ready", "second": "ready"}
        assert await client.factor("second") == 2.0
        assert (await client.infer("b")).status == 404
        assert client.host.is_ready

    serve(test, tmp_path)


def test_a_mended_manifest_must_not_bring_the_name_of_another_model(tmp_path: Path) -> None:
    a = add_model(tmp_path, "a", 1.0)
    file = add_model(tmp_path, "a", 2.0, BROKEN, directory="b")

    async def test(client: HostClient) -> None:
        mend(file, BROKEN, "")
        refused = await client.load("b")
        assert refused.json["error"] == f"{file} says name = 'a', which {a} has"
        assert "name = 'b'" in refused.json["hint"]
        assert await client.factor("a") == 1.0

    serve(test, tmp_path)


def test_a_model_is_loaded_again_with_its_manifest_as_it_is_by_now(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    file = tmp_path / "b" / "tailcut.toml"

    async def test(client: HostClient) -> None:
        assert (await client.unload("b")).status == 200
        add_model(tmp_path, "b", 5.0)
        mend(file, "max_rows = 4", "max_rows = 2")
        mend(file, ', { name = "z", shape = [-1, 2] }', "")
        assert (await client.load("b")).status == 200
        assert await client.factor("b") == 5.0
        assert (await client.get("/v2/models/b/config")).json["max_batch_size"] == 2
        assert [each["name"] for each in (await client.get("/v2/models/b")).json["outputs"]] == ["y"]
        assert [each["name"] for each in (await client.infer("b")).json["outputs"]] == ["y"]
        schemas = (await client.get("/openapi.json")).body
        assert schemas, "made of the manifest as it is by now"
        assert await client.factor("a") == 1.0

    serve(test, tmp_path)


@pytest.mark.parametrize("fault", ["broken", "gone", "renamed"])
def test_a_model_whose_manifest_was_spoiled_meanwhile_has_failed_with_that_reason(tmp_path: Path, fault: str) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    file = tmp_path / "b" / "tailcut.toml"
    whole = file.read_text()

    async def test(client: HostClient) -> None:
        await client.unload("b")
        if fault == "broken":
            file.write_text(whole + BROKEN)
        elif fault == "gone":
            file.unlink()
        else:
            mend(file, 'name = "b"', 'name = "other"')
        reason = {
            "broken": "slo.p95",
            "gone": "no manifest found",
            "renamed": "says name = 'other', but was started as 'b'",
        }[fault]
        refused = await client.load("b")
        assert refused.status == 500
        assert reason in refused.json["error"]
        assert await client.states() == {"a": "ready", "b": "failed"}
        assert reason in (await client.reasons())["b"]
        assert reason in (await client.index())["b"][1]
        file.write_text(whole)
        assert (await client.load("b")).status == 200
        assert await client.factor("b") == 2.0

    serve(test, tmp_path)


def test_new_folders_are_found_by_the_index_and_by_a_load(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0)

    async def test(client: HostClient) -> None:
        add_model(tmp_path, "b", 2.0)
        assert (await client.infer("b")).status == 404
        assert (await client.index())["b"] == ("UNAVAILABLE", "not loaded yet")
        assert await client.states() == {"a": "ready", "b": "unloaded"}
        assert client.host.is_ready, "nobody required it"
        series = 'tailcut_request_seconds_count{model="b",outcome="ok",route="infer"} 0.0'
        assert series in (await client.get("/metrics")).body.decode(), "before its first request"
        assert (await client.infer("b")).status == 503
        assert (await client.load("b")).status == 200
        add_model(tmp_path, "c", 3.0)
        assert (await client.load("c")).status == 200
        assert [await client.factor(name) for name in ("a", "b", "c")] == [1.0, 2.0, 3.0]
        assert {"/v2/models/b/infer", "/v2/models/c/infer"} <= set((await client.get("/openapi.json")).json["paths"])

    serve(test, tmp_path)


def test_a_new_folder_that_is_broken_or_has_a_taken_name_is_told_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = add_model(tmp_path, "a")

    async def test(client: HostClient) -> None:
        add_model(tmp_path, "b", 2.0, BROKEN)
        taken = add_model(tmp_path, "a", 3.0, directory="c")
        index = await client.index()
        assert (index["a"][0], index["b"][0]) == ("READY", "UNAVAILABLE")
        assert "slo.p95" in index["b"][1]
        reason = f"{taken} says name = 'a', which {a} has"
        assert index["c"] == ("UNAVAILABLE", reason)
        assert (await client.index())["c"] == index["c"]
        assert (await client.load("a")).status == 200
        told = [record for record in caplog.records if reason in record.getMessage()]
        assert len(told) == 1, "once, not by every look"
        assert (await client.reasons())["c"] == reason
        refused = await client.load("c")
        assert (refused.status, refused.json["error"]) == (500, reason)
        assert await client.factor("a") == 1.0
        assert client.host.is_ready
        mend(taken, 'name = "a"', 'name = "c"')
        assert (await client.load("c")).status == 200
        assert await client.factor("c") == 3.0

    serve(test, tmp_path)


def test_a_new_folder_with_a_taken_name_is_listed_by_what_no_other_model_has(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        add_model(tmp_path, "b", 2.0, directory="x")
        assert set(await client.index()) == {"a", "b"}
        late = add_model(tmp_path, "a", 3.0, directory="b")
        listed = str(late.parent)
        assert (await client.index())[listed][0] == "UNAVAILABLE"
        mend(late, 'name = "a"', 'name = "b"')
        assert "which" in (await client.index())[listed][1]
        mend(late, "[model]", f"{BROKEN}[model]")
        assert "slo.p95" in (await client.index())[listed][1]
        mend(late, BROKEN, "")
        mend(late, 'name = "b"', 'name = "d"')
        assert set(await client.index()) == {"a", "b", "d"}
        assert (await client.load("d")).status == 200
        assert await client.factor("d") == 3.0

    serve(test, add_models(tmp_path, a=1.0))


@pytest.mark.parametrize("how", ["listed", "loaded", "removed"])
def test_a_broken_folder_with_the_name_of_another_model_leaves_the_others_serving(tmp_path: Path, how: str) -> None:
    add_model(tmp_path, "b", 2.0, directory="x")
    broken = add_model(tmp_path, "c", 3.0, BROKEN, directory="b")
    listed = str(broken.parent)

    async def test(client: HostClient) -> None:
        assert await client.factor("b") == 2.0
        for _ in range(2):
            assert await client.states() == {"b": "ready", listed: "failed"}
            assert not client.host.is_ready, "it was there at the start, so it is required"
            state, reason = (await client.index())[listed]
            assert (state, "slo.p95" in reason) == ("UNAVAILABLE", True)
        if how == "removed":
            shutil.rmtree(broken.parent)
            assert set(await client.index()) == {"b"}
        else:
            mend(broken, BROKEN, "")
            if how == "listed":
                assert set(await client.index()) == {"b", "c"}
            assert (await client.load("c")).status == 200
            assert await client.factor("c") == 3.0
            assert await client.factor("b") == 2.0
        assert client.host.is_ready

    serve(test, tmp_path)


def test_a_folder_with_a_taken_name_that_is_removed_is_listed_no_more(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        add_model(tmp_path, "a", 3.0, directory="c")
        assert set(await client.index()) == {"a", "c"}
        mend(tmp_path / "c" / "tailcut.toml", "[model]", f"{BROKEN}[model]")
        assert "slo.p95" in (await client.index())["c"][1]
        shutil.rmtree(tmp_path / "c")
        assert set(await client.index()) == {"a"}

    serve(test, add_models(tmp_path, a=1.0))


def test_a_folder_found_twice_at_once_is_one_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_models(tmp_path, a=1.0)

    async def test(client: HostClient) -> None:
        add_model(tmp_path, "b", 2.0)
        for listed in await asyncio.gather(*(client.index() for _ in range(8))):
            assert set(listed) == {"a", "b"}
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []

    serve(test, tmp_path)


def test_folders_that_come_while_the_index_is_made_do_not_disturb_it(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        for round_ in range(8):
            add_model(tmp_path, f"n{round_}")
            first = asyncio.ensure_future(client.index())
            await asyncio.sleep(0)
            second = asyncio.ensure_future(client.load(f"n{round_}"))
            await first
            assert (await second).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=1.0, c=1.0))


def test_a_registry_that_cannot_be_read_is_one_models_matter(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=2.0)

    async def test(client: HostClient) -> None:
        where = client.host.engine("b").manifest.deployment.registry.path
        broken = tmp_path / "b" / where / "models" / "b" / "promoted.json"
        broken.parent.mkdir(parents=True)
        broken.write_text("{")
        index = await client.index()
        assert (index["a"][0], index["b"][0]) == ("READY", "READY"), "it answers all the same"
        assert "promoted.json" in index["b"][1]
        await client.unload("b")
        index = await client.index()
        assert (index["a"][0], index["b"][0]) == ("READY", "UNAVAILABLE")
        assert "promoted.json" in index["b"][1]

    serve(test, tmp_path)


def test_loads_at_once_open_a_model_once(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        await client.unload("b")
        await until(lambda: runtimes.open_now == {"a": 1})
        replies = await asyncio.gather(*(client.load("b") for _ in range(6)))
        assert [reply.status for reply in replies] == [200] * 6
        assert runtimes.open_now == {"a": 1, "b": 1}

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_loads_at_once_behind_requests_of_the_unloaded_model_open_it_once(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        old = runtimes.latest("b")
        old.hang()
        asked = asyncio.ensure_future(client.infer("b"))
        await until(old.entered.is_set)
        await client.unload("b")
        loads = [asyncio.ensure_future(client.load("b")) for _ in range(4)]
        await until(lambda: client.host.engine("b").state == "loading")
        assert runtimes.open_now == {"a": 1, "b": 1}, "not twice in memory"
        old.release()
        assert (await asked).status == 200
        assert [(await load).status for load in loads] == [200] * 4
        assert old.closed
        assert runtimes.open_now == {"a": 1, "b": 1}
        assert (await client.infer("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_a_load_whose_client_leaves_goes_on(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        await client.unload("b")
        runtimes.hold("b")
        before = runtimes.entered.count("b")
        load = asyncio.ensure_future(client.host.load("b"))
        await until(lambda: runtimes.entered.count("b") > before)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        runtimes.let("b")
        await until(lambda: client.host.engine("b").is_ready)
        assert (await client.infer("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_a_load_of_a_loaded_model_changes_nothing(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        assert (await client.load("b")).status == 200
        assert {name: len(fakes) for name, fakes in runtimes.opened.items()} == {"a": 1, "b": 1}

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_a_draining_or_stopped_host_loads_and_unloads_nothing(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        await client.app.start()
        await client.unload("b")
        client.host.drain()
        assert (await client.infer("a")).status == 200
        found = await client.get("/v2/health/ready")
        assert (found.status, found.json["state"]) == (503, "draining")
        for name in ("a", "b"):
            for reply in (await client.load(name), await client.unload(name)):
                assert (reply.status, reply.json["error"]) == (503, "the server is draining")
        await client.app.stop()
        with pytest.raises(NotReady, match="the server is stopped"):
            await client.host.load("b")
        assert runtimes.open_now == {}

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["drain", "stop"])
def test_a_load_that_waits_when_the_host_ends_opens_nothing(tmp_path: Path, runtimes: Runtimes, ending: str) -> None:
    """It waits for the last request of the model that was unloaded."""

    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)
        await client.app.start()
        old = runtimes.latest("b")
        old.hang()
        asked = asyncio.ensure_future(client.infer("b"))
        await until(old.entered.is_set)
        await client.unload("b")
        load = asyncio.ensure_future(client.load("b"))
        await until(lambda: client.host.engine("b").state == "loading")
        if ending == "drain":
            client.host.drain()
        stopping = asyncio.ensure_future(client.app.stop())
        await asyncio.sleep(0)
        old.release()
        await stopping
        assert (await load).status == 503
        await asked
        await until(lambda: runtimes.open_now == {})
        assert len(runtimes.opened["b"]) == 1

    asyncio.run(main())


# -- Code that changes under a server ----------------------------------------------------------------------------------

POSTPROCESS = """
from pathlib import Path

WORD = Path(__file__).with_name("word.txt").read_text() if {reads} else ""

def postprocess(outputs):
    return [f"{word}{{WORD}}" for _ in outputs["y"]]
"""


def add_hooked(folder: Path, module: str, word: str = "old", *, reads: bool = False) -> Path:
    """Write a model "b" whose answers are a word; return the file of its hook."""
    manifest = add_model(folder, "b")
    files = 'files = ["word.txt"]' if reads else ""
    mend(manifest, "[model]", f'[model]\npostprocess = "{module}:postprocess"\n{files}')
    file = folder / "b" / f"{module}.py"
    file.write_text(POSTPROCESS.format(word=word, reads=reads))
    (folder / "b" / "word.txt").write_text("!")
    return file


async def said(client: HostClient) -> str:
    """Return what "b" answers."""
    reply = await client.post("/predict/b", {"rows": [{"id": 1, "value": 2}]})
    assert reply.status == 200, reply.json
    word: str = reply.json["predictions"][0]
    return word


async def reload(client: HostClient) -> Answer:
    """Unload "b" and load it again."""
    assert (await client.unload("b")).status == 200
    reply = await client.load("b")
    assert reply.status == 200, reply.json
    return reply


def test_a_hook_that_was_edited_is_told_of_and_the_version_is_of_the_code_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path, "a")
    file = add_hooked(tmp_path, "edited_hooks")

    async def test(client: HostClient) -> None:
        engine = client.host.engine("b")
        version = engine.pipeline.serving.deployment_version
        old = file.read_text()
        for text, outdated in ((old.replace("old", "new"), True), (old, False)):
            caplog.clear()
            file.write_text(text)
            reply = await reload(client)
            assert await said(client) == "old"
            assert engine.pipeline.serving.deployment_version == version, "the code that runs is the same"
            ready = (await client.get("/v2/health/ready")).json
            shown = (reply.json, ready["models"]["b"], (await client.get("/v2/models/b")).json)
            for found in shown:
                assert ("code" in found) == outdated
                if outdated:
                    assert found["code"]["state"] == "outdated"
                    assert "edited_hooks.py changed on the disk" in found["code"]["error"]
                    assert "restart the server" in found["code"]["hint"]
            assert ready["ready"]
            assert "code" not in ready["models"]["a"]
            assert ("edited_hooks.py changed on the disk" in caplog.text) == outdated
            assert "during its import" not in caplog.text

    serve(test, tmp_path)


def test_a_hook_that_was_removed_is_told_of_likewise(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    file = add_hooked(tmp_path, "removed_hooks")

    async def test(client: HostClient) -> None:
        version = client.host.engine("b").pipeline.serving.deployment_version
        file.unlink()
        assert "removed_hooks.py" in (await reload(client)).json["code"]["error"]
        assert client.host.engine("b").pipeline.serving.deployment_version == version

    serve(test, tmp_path)


def test_what_a_library_compiled_and_loaded_by_itself_is_no_code_of_the_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile does so: modules with dotted names and no package, in a folder of its own that it writes again."""
    add_model(tmp_path, "a")
    add_hooked(tmp_path, "hooks_beside_compiled")
    built = tmp_path / "inductor" / f"ckey.main{EXTENSION_SUFFIXES[0]}"
    built.parent.mkdir()
    built.write_bytes(b"one")
    module = ModuleType("ckey.main")
    module.__spec__ = spec_from_file_location("ckey.main", built)

    async def test(client: HostClient) -> None:
        version = client.host.engine("b").pipeline.serving.deployment_version
        monkeypatch.setitem(sys.modules, "ckey.main", module)
        for content in (b"one", b"another"):
            built.write_bytes(content)
            assert (await reload(client)).json == {}
            assert client.host.engine("b").pipeline.serving.deployment_version == version
        assert "changed" not in caplog.text

    serve(test, tmp_path)


def test_a_model_that_came_to_a_running_server_is_loaded_again_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are younger than the process, and what it imported of them is known all the same."""
    add_model(tmp_path, "a")

    async def test(client: HostClient) -> None:
        add_hooked(tmp_path, "late_hooks")
        assert (await client.load("b")).status == 200
        version = client.host.engine("b").pipeline.serving.deployment_version
        assert (await reload(client)).json == {}
        assert client.host.engine("b").pipeline.serving.deployment_version == version
        assert "changed" not in caplog.text

    serve(test, tmp_path)


def test_a_data_file_that_a_module_may_hold_makes_a_version_of_its_own(tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    add_hooked(tmp_path, "reading_hooks", reads=True)

    async def test(client: HostClient) -> None:
        engine = client.host.engine("b")
        versions = [engine.pipeline.serving.deployment_version]
        (tmp_path / "b" / "word.txt").write_text("?")
        for _ in range(2):
            assert "word.txt changed on the disk" in (await reload(client)).json["code"]["error"]
            assert await said(client) == "old!"
            versions.append(engine.pipeline.serving.deployment_version)
        assert len(set(versions)) == 3, "nobody knows which text a hook has in hand: it shares no cached answers"
        (tmp_path / "b" / "word.txt").write_text("!")
        assert (await reload(client)).json == {}
        assert engine.pipeline.serving.deployment_version == versions[0]

    serve(test, tmp_path)


# -- Unloading ---------------------------------------------------------------------------------------------------------


def test_requests_of_an_unloaded_model_that_were_admitted_are_answered_and_later_ones_refused(
    tmp_path: Path, runtimes: Runtimes
) -> None:
    async def test(client: HostClient) -> None:
        fake = runtimes.latest("b")
        fake.hang()
        runs = asyncio.ensure_future(client.infer("b"))
        await until(fake.entered.is_set)
        waits = [asyncio.ensure_future(client.infer("b")) for _ in range(3)]
        engine = client.host.engine("b")
        await until(lambda: engine.pipeline.serving.dispatcher.scheduler.waiting.rows == 6)
        unread = client.connect("POST", "/v2/models/b/infer")
        unread.send(b'{"inputs": ', more=True)
        reading = asyncio.ensure_future(unread.answer())
        await until(lambda: unread.sent == 1)
        assert (await client.unload("b")).status == 200
        assert (await client.states())["b"] == "unloaded"
        assert (await client.index())["b"] == ("UNAVAILABLE", "unloaded")
        refused = await client.infer("b")
        assert (refused.status, refused.json["code"]) == (503, "not_ready")
        assert refused.json["hint"] == "load it: POST /v2/repository/models/b/load"
        unread.send(b'[{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}')
        assert (await reading).status == 503, "it was not admitted yet"
        assert not fake.closed
        assert (await client.infer("a")).status == 200
        fake.release()
        assert [(await each).status for each in (runs, *waits)] == [200] * 4
        await until(lambda: runtimes.open_now == {"a": 1})
        ended = engine.recorder.requests
        assert sum(ended.values()) == 6

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_unload_while_loading_ends_the_load(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        await client.unload("b")
        runtimes.hold("b")
        before = runtimes.entered.count("b")
        load = asyncio.ensure_future(client.load("b"))
        await until(lambda: runtimes.entered.count("b") > before)
        assert (await client.unload("b")).status == 200
        refused = await load
        assert refused.status == 503
        assert refused.json["error"] == "model 'b' was unloaded while it was loading"
        assert (await client.states())["b"] == "unloaded"
        assert await client.reasons() == {}
        runtimes.let("b")
        await until(lambda: len(runtimes.opened["b"]) == 2)
        await until(lambda: runtimes.open_now == {"a": 1})
        assert (await client.load("b")).status == 200
        assert (await client.infer("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


@pytest.mark.parametrize("loads", [2, 5])
def test_unload_ends_all_loads_that_wait_for_their_turn(tmp_path: Path, runtimes: Runtimes, loads: int) -> None:
    async def test(client: HostClient) -> None:
        await client.unload("b")
        runtimes.hold("b")
        before = runtimes.entered.count("b")
        waiting = [asyncio.ensure_future(client.load("b")) for _ in range(loads)]
        await until(lambda: runtimes.entered.count("b") > before)
        assert (await client.unload("b")).status == 200
        replies = [await each for each in waiting]
        assert [reply.status for reply in replies] == [503] * loads
        said = sorted(reply.json["error"] for reply in replies)
        assert said[0] == "model 'b' was unloaded while it was loading"
        assert set(said[1:]) == {"model 'b' was unloaded while its load waited"}
        assert {reply.json["hint"] for reply in replies} == {"load it again"}
        assert (await client.states())["b"] == "unloaded"
        runtimes.let("b")
        await until(lambda: len(runtimes.opened["b"]) == 2)
        await until(lambda: runtimes.open_now == {"a": 1})
        assert (await client.load("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_of_loads_and_unloads_at_once_the_last_word_wins(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        host = client.host
        for last in ("unload", "load") * 3:
            first = [asyncio.ensure_future(host.load("b")) for _ in range(3)]
            await asyncio.sleep(0)  # each is asked for
            host.unload("b")
            if last == "load":
                await host.load("b")
            ends = await asyncio.gather(*first, return_exceptions=True)
            assert all(isinstance(end, NotReady) for end in ends)
            assert (await client.states())["b"] == ("ready" if last == "load" else "unloaded")

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_unload_during_the_start_leaves_the_others_starting(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        runtimes.hold("b")
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        starting = asyncio.ensure_future(client.app.start())
        await until(lambda: "b" in runtimes.entered and client.host.engine("a").is_ready)
        assert (await client.unload("b")).status == 200
        await starting
        assert await client.states() == {"a": "ready", "b": "unloaded"}
        runtimes.let("b")
        await until(lambda: runtimes.open_now == {"a": 1})
        assert (await client.load("b")).status == 200
        assert client.host.is_ready
        await client.app.stop()
        assert runtimes.open_now == {}

    asyncio.run(main())


def test_unload_of_the_only_model_while_it_starts_closes_what_was_opened(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        runtimes.hold("m")
        client = host_of(add_model(tmp_path, "m"))
        starting = asyncio.ensure_future(client.app.start())
        await until(lambda: "m" in runtimes.entered)
        assert (await client.unload("m")).status == 200
        await starting
        assert client.host.state == "unloaded"
        runtimes.let("m")
        await until(lambda: "m" in runtimes.opened and runtimes.open_now == {})
        await client.app.stop()

    asyncio.run(main())


def test_unload_of_a_failed_model_forgets_the_failure(tmp_path: Path, runtimes: Runtimes) -> None:
    runtimes.broken.add("b")

    async def test(client: HostClient) -> None:
        assert (await client.reasons())["b"] == "b cannot be opened"
        assert (await client.unload("b")).status == 200
        assert (await client.states())["b"] == "unloaded"
        assert await client.reasons() == {}
        assert (await client.index())["b"] == ("UNAVAILABLE", "unloaded")
        assert "is unloaded" in (await client.infer("b")).json["error"]
        runtimes.broken.clear()
        assert (await client.load("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0))


def test_unload_and_load_at_once_leave_a_model_in_one_state_or_the_other(tmp_path: Path, runtimes: Runtimes) -> None:
    async def test(client: HostClient) -> None:
        for _ in range(10):
            calls = [client.load("b"), client.unload("b"), client.load("b"), client.unload("b"), client.index()]
            await asyncio.gather(*calls)
            state = (await client.states())["b"]
            assert state in {"ready", "unloaded"}
            assert (await client.infer("b")).status == (200 if state == "ready" else 503)
        assert (await client.load("b")).status == 200
        await until(lambda: runtimes.open_now == {"a": 1, "b": 1})

    serve(test, add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)


def test_a_variant_that_was_being_loaded_does_not_take_the_place_of_a_model_that_was_loaded_again(
    tmp_path: Path, runtimes: Runtimes
) -> None:
    promotions = Promotions(promoted(tmp_path / "m"))
    first, second = promotions.add(1.0), promotions.add(3.0)
    promotions.promote(first)
    runtimes.factors = {first.id: 1.0, second.id: 3.0}

    async def test(client: HostClient) -> None:
        runtimes.hold("m")
        before = runtimes.entered.count("m")
        switch = asyncio.ensure_future(client.load("m", version=second.id))
        await until(lambda: runtimes.entered.count("m") == before + 1)
        await client.unload("m")
        again = asyncio.ensure_future(client.load("m"))
        await until(lambda: runtimes.entered.count("m") == before + 2)
        runtimes.let("m")
        assert (await again).status == 200
        refused = await switch
        assert (refused.status, refused.json["code"]) == (503, "not_ready")
        assert await client.factor("m") == 1.0
        await until(lambda: runtimes.open_now == {"a": 1, "m": 1})

    add_model(tmp_path, "a")
    serve(test, tmp_path, overrides=(*THREAD, "serve.follow=1h"))


def test_a_stop_fails_what_hangs_in_an_unloaded_model_and_closes_it(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0), overrides=THREAD)
        await client.app.start()
        fake = runtimes.latest("b")
        fake.hang()
        runs = asyncio.ensure_future(client.infer("b"))
        await until(fake.entered.is_set)
        waits = asyncio.ensure_future(client.infer("b"))
        engine = client.host.engine("b")
        await until(lambda: engine.pipeline.serving.dispatcher.scheduler.waiting.rows == 2)
        await client.unload("b")
        await client.host.stop(timeout_s=0.05)
        assert (await waits).status == 503
        assert (await runs).status == 503
        fake.release()
        await until(lambda: runtimes.open_now == {})
        await client.app.stop()

    asyncio.run(main())


# -- Memory ------------------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_refused_with_the_figures(tmp_path: Path, runtimes: Runtimes) -> None:
    free = [10 << 30]

    async def test(client: HostClient) -> None:
        client.host._state.memory = LoadingMemory(lambda: free[0])
        await client.unload("b")
        free[0] = 100
        size = (tmp_path / "b" / "model.onnx").stat().st_size
        refused = await client.load("b")
        assert (refused.status, refused.json["code"]) == (500, "start_failed")
        assert refused.json["error"] == f"model 'b' does not fit into memory: its files have {size} B, free are 100 B"
        assert refused.json["hint"] == "unload another model first, or give the server more memory"
        assert await client.states() == {"a": "ready", "b": "failed"}
        assert "does not fit" in (await client.reasons())["b"]
        assert (await client.infer("a")).status == 200
        free[0] = 10 << 30
        assert (await client.load("b")).status == 200

    serve(test, add_models(tmp_path, a=1.0, b=2.0))


def test_another_variant_that_does_not_fit_beside_the_served_one_is_refused_and_that_one_stays(tmp_path: Path) -> None:
    free = [100]
    file = tmp_path / "a" / "model.onnx"

    async def test(client: HostClient) -> None:
        client.host._state.memory = LoadingMemory(lambda: free[0])
        assert (await client.load("a")).status == 200, "which is served already: nothing is opened"
        save_model(file, 3.0)
        refused = await client.load("a")
        assert (refused.status, refused.json["code"]) == (500, "start_failed")
        size = file.stat().st_size
        figures = f"of model 'a' does not fit into memory: its files have {size} B, free are 100 B"
        assert refused.json["error"] == f"variant 'source' of version source {figures}"
        assert "opened beside the variant that is served" in refused.json["hint"]
        assert await client.factor("a") == 1.0
        assert client.host.is_ready
        free[0] = size
        assert (await client.load("a")).status == 200
        assert await client.factor("a") == 3.0, "its files fit; what else it takes is an estimate"

    serve(test, add_models(tmp_path, a=1.0, b=2.0))


def test_models_that_do_not_fit_together_are_loaded_one_after_the_other(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0, c=3.0))
        size = (tmp_path / "a" / "model.onnx").stat().st_size
        client.host._state.memory = LoadingMemory(lambda: 4 * size)  # 0.8 of it: one, which may hold 3 times its files
        for name in "abc":
            runtimes.hold(name)
        starting = asyncio.ensure_future(client.app.start())
        done: list[str] = []
        while len(done) < 3:
            await until(lambda: len(set(runtimes.entered)) == len(done) + 1)
            assert len(set(runtimes.entered)) == len(done) + 1
            (name,) = set(runtimes.entered) - set(done)
            runtimes.let(name)
            await until(lambda name=name: client.host.engine(name).is_ready)  # type: ignore[misc]
            done.append(name)
        await starting
        await client.app.stop()

    asyncio.run(main())


def test_unload_of_a_model_that_waits_for_memory(tmp_path: Path, runtimes: Runtimes) -> None:
    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        size = (tmp_path / "a" / "model.onnx").stat().st_size
        client.host._state.memory = LoadingMemory(lambda: 4 * size)
        runtimes.hold("a")
        runtimes.hold("b")
        starting = asyncio.ensure_future(client.app.start())
        await until(lambda: runtimes.entered)
        (first,) = set(runtimes.entered)
        second = "b" if first == "a" else "a"
        await client.unload(second)
        await until(lambda: client.host.engine(second).state == "unloaded")
        runtimes.let(first)
        await starting
        assert await client.states() == {first: "ready", second: "unloaded"}
        runtimes.let(second)
        assert (await client.load(second)).status == 200
        await client.app.stop()

    asyncio.run(main())


# -- What is seen of it ------------------------------------------------------------------------------------------------


def test_metrics_name_the_model(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        for name, times in (("a", 1), ("b", 3)):
            for _ in range(times):
                await client.factor(name)
        await client.unload("c")
        text = (await client.get("/metrics")).body.decode()
        found = {
            (sample.name, sample.labels.get("model")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("route", "infer") == "infer"
            and sample.labels.get("code", "ok") == "ok"
            and "le" not in sample.labels
            and "stage" not in sample.labels
        }
        assert {model: found["tailcut_requests_total", model] for model in "abc"} == {"a": 1, "b": 3, "c": 0}
        assert {model: found["tailcut_ready", model] for model in "abc"} == {"a": 1, "b": 1, "c": 0}
        assert {model: found["tailcut_batch_rows_count", model] for model in "abc"} == {"a": 1, "b": 3, "c": 0}
        assert ("tailcut_served", "c") not in found
        assert found["tailcut_host_ready", None] == 0
        series = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
        assert len(series) == len(set(series)), "each series once"

    serve(test, add_models(tmp_path, a=1.0, b=2.0, c=3.0))


def test_statistics_are_of_each_model(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        await client.factor("b")
        await client.unload("b")
        await client.load("b")
        await client.factor("b")
        (found,) = (await client.get("/v2/models/b/stats")).json["model_stats"]
        assert (found["name"], found["inference_stats"]["success"]["count"]) == ("b", 2)
        (found,) = (await client.get("/v2/models/a/stats")).json["model_stats"]
        assert found["inference_stats"]["success"]["count"] == 0

    serve(test, add_models(tmp_path, a=1.0, b=2.0))


class Lines(logging.Handler):
    """The lines of a host's log: the model that each names, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self._text = formatter("text", "host")

    def emit(self, record: logging.LogRecord) -> None:
        line = self._text.format(record)
        self.lines.append((line.split()[2], line))

    def models(self, said: str) -> list[str]:
        """Return what the lines name that say something."""
        return sorted(model for model, line in self.lines if said in line)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger("tailcut")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(logging.NOTSET)


def test_log_lines_of_loading_name_the_model(tmp_path: Path, lines: Lines) -> None:
    async def test(client: HostClient) -> None:
        await client.unload("b")
        (tmp_path / "b" / "model.onnx").rename(tmp_path / "b" / "other.onnx")
        await client.load("b")
        (tmp_path / "b" / "other.onnx").rename(tmp_path / "b" / "model.onnx")
        await client.load("b")

    serve(test, add_models(tmp_path, a=1.0, b=2.0))
    assert lines.models(" is ready") == ["a", "b", "b"]
    assert lines.models("the model is unloaded") == ["b"]
    assert lines.models("the model could not be loaded") == ["b"]


def test_a_model_that_becomes_warm_while_the_server_drains_is_not_said_to_be_ready(
    tmp_path: Path, runtimes: Runtimes, lines: Lines
) -> None:
    async def main() -> None:
        client = host_of(add_models(tmp_path, a=1.0, b=2.0))
        runtimes.hold("b")
        starting = asyncio.ensure_future(client.app.start())
        await until(lambda: "b" in runtimes.waiting and client.host.engine("a").is_ready)
        client.host.drain()
        runtimes.let("b")
        await starting
        await client.app.stop()

    asyncio.run(main())
    assert lines.models("is ready") == ["a"]


def test_log_lines_of_requests_and_of_a_switch_name_the_model(tmp_path: Path, lines: Lines) -> None:
    manifest = promoted(tmp_path / "m", more=FEATURES.replace("app_hooks:values", "fails:values"))
    (tmp_path / "m" / "fails.py").write_text("def values(keys, context):\n    raise RuntimeError('down')\n")
    promotions = Promotions(manifest)
    promotions.promote(promotions.add(1.0))
    add_model(tmp_path, "a")

    async def test(client: HostClient) -> None:
        assert (await client.post("/predict/m", {"entities": [{"id": 1}]})).status == 503
        assert (await client.load("m", version=promotions.add(3.0).id)).status == 200
        assert await client.factor("m") == 3.0

    serve(test, tmp_path)
    assert lines.models('feature group "values" fails') == ["m"]
    assert lines.models("predict failed") == ["m"]
    assert lines.models("switched to variant") == ["m"]
    assert [line for model, line in lines.lines if model == "host"] == []


# -- Leaks -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_fifty_loads_and_unloads_leave_no_memory_no_threads_and_no_files(tmp_path: Path, executor: str) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b")

    async def test(client: HostClient) -> None:
        async def cycle() -> None:
            await client.load("b")
            assert await client.factor("b") == 1.0
            await client.unload("b")
            await client.host.engine("b").gone()

        async def held_least(cycles: int) -> dict[str, int]:
            """The least that is held after a cycle: asyncio keeps up to a hundred cancelled timers for a while."""
            held = []
            for _ in range(cycles):
                await cycle()
                assert await client.factor("a") == 1.0
                held.append(_held())
            return {name: min(each[name] for each in held) for name in held[0]}

        await held_least(3)  # pools of threads have grown by then
        before = await held_least(20)
        after = await held_least(30)
        assert after["objects"] - before["objects"] < 20 * 10, "less than a load leaves behind"
        assert after["threads"] <= before["threads"]
        assert after["files"] <= before["files"]

    serve(test, tmp_path, overrides=(f"pool.executor={executor}", "pool.executors=1"))


def _held() -> dict[str, int]:
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "threads": sum(not thread.name.startswith("asyncio") for thread in threading.enumerate()),
        "files": len(os.listdir("/proc/self/fd")),
    }


# -- One model alone ---------------------------------------------------------------------------------------------------


def test_one_model_alone_answers_as_it_did(tmp_path: Path) -> None:
    async def test(client: HostClient) -> None:
        ready = await client.get("/v2/health/ready")
        assert ready.json == {"ready": True, "state": "ready"}
        assert (await client.infer("other")).json["hint"] == "this server has 'm'"
        await client.unload("m")
        assert (await client.get("/v2/health/ready")).json == {"ready": False, "state": "unloaded"}
        await client.load("m")
        assert await client.factor("m") == 1.0

    serve(test, add_model(tmp_path, "m"))


def test_the_host_names_models_that_are_unknown_and_those_that_failed(tmp_path: Path) -> None:
    add_models(tmp_path, **{f"m{n:02}": 1.0 for n in range(12)})
    shutil.rmtree(tmp_path / "m11")
    add_model(tmp_path, "m11", more=BROKEN)
    host = host_of(tmp_path).host
    with pytest.raises(NotFound, match="model 'x' is unknown") as caught:
        host.engine("x")
    assert caught.value.hint.endswith("'m09' and 2 more")
    with pytest.raises(NotReady, match=r"slo\.p95"):
        host.engine("m11")


def test_rows_and_tensors_share_a_batch(tmp_path: Path, runtimes: Runtimes) -> None:
    overrides = ("pool.executor=thread", "pool.executors=1")

    async def main() -> None:
        async with running_host(add_models(tmp_path, a=1.0), overrides=overrides) as client:
            engine = client.host.engine("a")
            dispatcher, fake = engine.pipeline.serving.dispatcher, runtimes.latest("a")
            fake.hang()
            asking = [asyncio.create_task(client.infer("a"))]
            await until(lambda: dispatcher.running.rows == 2)
            asking += [
                asyncio.create_task(client.infer("a")),
                asyncio.create_task(client.post("/predict/a", {"rows": [{"id": 1, "value": 2}]})),
            ]
            await until(lambda: dispatcher.scheduler.waiting.rows == 3)
            fake.release()
            assert [reply.status for reply in await asyncio.gather(*asking)] == [200, 200, 200]
            assert {rows: count for rows, (count, _) in engine.recorder.by_rows.items()} == {2: 1, 3: 1}

    asyncio.run(main())


def test_an_unload_in_the_moment_in_which_a_load_ends_is_carried_out(
    tmp_path: Path, runtimes: Runtimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running_host(add_models(tmp_path, a=1.0, b=1.0)) as client:
            host = client.host
            host.unload("a")
            told = host_module.tell_ready

            def unload_next(*args: object) -> None:
                told(*args)  # type: ignore[arg-type]
                asyncio.get_running_loop().call_soon(host.unload, "a")  # before anything hears of the load's end

            monkeypatch.setattr(host_module, "tell_ready", unload_next)
            await host.load("a")
            await until(lambda: host.engine("a").state == "unloaded")
            assert not host.engine("a").is_loaded

    asyncio.run(main())
