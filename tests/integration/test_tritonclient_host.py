"""Triton's own clients, unmodified, against ``tailcut serve models/``: three models by name, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
from tests.host_kit import add_model, add_models
from tests.integration.servers import free_port
from tests.integration.serving import HOST, Served
from tests.promotion_kit import Promotions, deployment
from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.integration,
    # gevent and its HTTP client, at import and at their end; none of it is tailcut's.
    pytest.mark.filterwarnings("ignore"),
]

triton_http = pytest.importorskip("tritonclient.http", exc_type=ImportError)

ROWS = np.array([[1, 2], [3, 4]], dtype=np.float32)
SUMS = np.array([3, 7], dtype=np.float32)


class Models(Served):
    """``tailcut serve`` of a folder: a and b as they are, c from its registry, whose second version is not promoted."""

    def __init__(self, folder: Path, what: tuple[str, ...] = (), settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.grpc_port = free_port()
        more = [f"server.grpc_port={self.grpc_port}", "server.drain=200ms", *settings]
        super().__init__(folder, settings=more, prepared=True, what=what or (str(folder),))

    @property
    def urls(self) -> dict[str, str]:
        return {"http": f"{HOST}:{self.port}", "grpc": f"{HOST}:{self.grpc_port}"}


class Front:
    """One of Triton's clients, with answers in the form of HTTP's."""

    def __init__(self, kind: str, server: Models) -> None:
        self.kind = kind
        self._library = triton_http if kind == "http" else triton_grpc
        self.client = self._library.InferenceServerClient(server.urls[kind])
        self._named = {} if kind == "http" else {"as_json": True}

    def rows(self, rows: Any = ROWS) -> Any:
        """An input of any of the models."""
        found = self._library.InferInput("x", list(rows.shape), "FP32")
        found.set_data_from_numpy(rows)
        return found

    def factor(self, name: str, **more: Any) -> float:
        """The factor that a model answers with."""
        result = self.client.infer(name, [self.rows()], **more)
        return float((result.as_numpy("y") / SUMS).mean())

    def index(self) -> dict[tuple[str, str], str]:
        """States by model and version."""
        found = self.client.get_model_repository_index(**self._named)
        entries = found if self.kind == "http" else found.get("models", [])
        return {(entry["name"], entry.get("version", "")): entry.get("state", "") for entry in entries}

    def reason(self, name: str) -> str:
        """Why a model is not served."""
        found = self.client.get_model_repository_index(**self._named)
        entries = found if self.kind == "http" else found.get("models", [])
        return str(next(entry["reason"] for entry in entries if entry["name"] == name))

    def statistics(self, name: str = "") -> dict[str, int]:
        """Requests that were answered, by model."""
        found = self.client.get_inference_statistics(name, **self._named)["model_stats"]
        counts: dict[str, int] = {}
        for each in found:
            success = int(each["inference_stats"]["success"].get("count", 0))
            counts[each["name"]] = counts.get(each["name"], 0) + success
        return counts

    def metadata(self, name: str) -> dict[str, Any]:
        """What Triton's client is told of a model."""
        return dict(self.client.get_model_metadata(name, **self._named))

    def config(self, name: str) -> dict[str, Any]:
        """A model's configuration."""
        found = self.client.get_model_config(name, **self._named)
        return dict(found if self.kind == "http" else found["config"])

    def refused(self, work: Callable[[], object]) -> InferenceServerException:
        """The error of what is refused."""
        with pytest.raises(InferenceServerException) as caught:
            work()
        return caught.value


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, versions: dict[str, str]) -> Iterator[Models]:
    folder = add_models(tmp_path_factory.mktemp("models"), a=1.0, b=2.0)
    promotions = Promotions(deployment(folder / "c", name="c"))
    first, second = promotions.add(3.0), promotions.add(5.0)
    promotions.promote(first)
    versions |= {"first": first.id, "second": second.id}
    with Models(folder, settings=('serve.follow="0s"',)) as served:
        yield served


@pytest.fixture(params=["http", "grpc"])
def front(server: Models, request: pytest.FixtureRequest) -> Iterator[Front]:
    found = Front(request.param, server)
    try:
        yield found
    finally:
        found.client.close()


# -- Answers -----------------------------------------------------------------------------------------------------------


def test_server_and_models_are_ready(front: Front, versions: dict[str, str]) -> None:
    assert front.client.is_server_live()
    assert front.client.is_server_ready()
    assert all(front.client.is_model_ready(name) for name in "abc")
    assert front.client.is_model_ready("c", versions["first"])


def test_each_model_answers_with_its_own_factor(front: Front, versions: dict[str, str]) -> None:
    assert [front.factor(name) for name in "abc"] == [1.0, 2.0, 3.0]
    assert front.factor("c", model_version=versions["first"]) == 3.0
    assert "version" in front.refused(lambda: front.factor("c", model_version=versions["second"])).message()


def test_metadata_and_configuration(front: Front, versions: dict[str, str]) -> None:
    for name, version in (("a", "source"), ("b", "source"), ("c", versions["first"])):
        found = front.metadata(name)
        assert (found["name"], found["versions"]) == (name, [version])
        assert [one["name"] for one in found["outputs"]] == ["y", "z"]
        config = front.config(name)
        assert (config["name"], config["max_batch_size"]) == (name, 4)
        assert config["backend"] == "onnxruntime"


def test_statistics_are_counted_by_model(front: Front) -> None:
    before = front.statistics()
    assert sorted(before) == ["a", "b", "c"]
    for _ in range(3):
        front.factor("b")
    after = front.statistics()
    assert {name: after[name] - before[name] for name in "abc"} == {"a": 0, "b": 3, "c": 0}
    assert front.statistics("b") == {"b": after["b"]}


def test_the_index_lists_all_models_and_versions(front: Front, versions: dict[str, str]) -> None:
    assert front.index() == {
        ("a", "source"): "READY",
        ("b", "source"): "READY",
        ("c", versions["first"]): "READY",
        ("c", versions["second"]): "UNAVAILABLE",
    }


def test_a_model_that_is_not_there(front: Front) -> None:
    for work in (
        lambda: front.factor("x"),
        lambda: front.metadata("x"),
        lambda: front.config("x"),
        lambda: front.statistics("x"),
        lambda: front.client.load_model("x"),
        lambda: front.client.unload_model("x"),
    ):
        error = front.refused(work)
        assert "model 'x' is unknown" in error.message()
        if front.kind == "grpc":
            assert error.status() == "StatusCode.NOT_FOUND"
    assert not front.client.is_model_ready("x")


def test_many_at_once_to_all_models(front: Front) -> None:
    waiting: queue.Queue[tuple[str, Any]] = queue.Queue()
    if front.kind == "http":
        asked = [(name, front.client.async_infer(name, [front.rows()])) for name in "abc" * 8]
        for name, request in asked:
            waiting.put((name, request.get_result()))
    else:
        for name in "abc" * 8:
            front.client.async_infer(name, [front.rows()], lambda result, error, name=name: waiting.put((name, result)))
    for _ in range(24):
        name, result = waiting.get(timeout=30)
        np.testing.assert_array_equal(result.as_numpy("y"), {"a": 1, "b": 2, "c": 3}[name] * SUMS)


# -- Streams -----------------------------------------------------------------------------------------------------------


def test_one_stream_asks_models_of_different_names(server: Models) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    front = Front("grpc", server)
    front.client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(12):
        name = "abc"[number % 3]
        rows = front.rows(np.full((1, 2), number, np.float32))
        front.client.async_stream_infer(name, [rows], request_id=f"{name}-{number}", enable_empty_final_response=True)
    front.client.async_stream_infer("x", [front.rows()], request_id="x-1")
    front.client.stop_stream()
    found = [answers.get(timeout=30) for _ in range(13)]
    assert answers.empty()
    factors = {"a": 1.0, "b": 2.0, "c": 3.0}
    sums = {}
    for result, error in found:
        if error is None:
            response = result.get_response()
            sums[response.id] = (response.model_name, float(result.as_numpy("y")[0]))
    wanted = [("abc"[number % 3], number) for number in range(12)]
    assert sums == {f"{name}-{number}": (name, 2.0 * factors[name] * number) for name, number in wanted}
    (error,) = [error for _, error in found if error is not None]
    assert error.message().startswith("[request id: x-1] model 'x' is unknown")
    front.client.close()


def test_a_stream_goes_on_while_one_of_its_models_is_unloaded_and_loaded(server: Models) -> None:
    async def main() -> None:
        async with triton_grpc_aio.InferenceServerClient(server.urls["grpc"]) as client:
            asks: asyncio.Queue[str | None] = asyncio.Queue()

            async def requests() -> Any:
                while (name := await asks.get()) is not None:
                    tensor = triton_grpc.InferInput("x", [2, 2], "FP32")
                    tensor.set_data_from_numpy(ROWS)
                    yield {"model_name": name, "inputs": [tensor], "request_id": name}

            stream = aiter(client.stream_infer(requests()))

            async def ask(name: str) -> Any:
                asks.put_nowait(name)
                async with asyncio.timeout(30):
                    return await anext(stream)

            assert [(await ask(name))[1] for name in "ab"] == [None, None]
            await client.unload_model("b")
            _, error = await ask("b")
            assert "model 'b' is unloaded" in error.message()
            result, error = await ask("a")
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), SUMS)
            await client.load_model("b")
            result, error = await ask("b")
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), 2 * SUMS)
            asks.put_nowait(None)

    asyncio.run(main())


# -- Load and unload ---------------------------------------------------------------------------------------------------


def test_unload_and_load_of_one_model_leave_the_others(front: Front) -> None:
    front.client.unload_model("b")
    assert not front.client.is_model_ready("b")
    assert not front.client.is_server_ready()
    assert front.client.is_server_live()
    assert front.index()["b", ""] == "UNAVAILABLE"
    assert front.reason("b") == "unloaded"
    error = front.refused(lambda: front.factor("b"))
    assert "model 'b' is unloaded" in error.message()
    assert error.status() == ("503" if front.kind == "http" else "StatusCode.UNAVAILABLE")
    for work in (lambda: front.metadata("b"), lambda: front.config("b")):
        assert "is unloaded" in front.refused(work).message()
    assert front.factor("a") == 1.0
    front.client.unload_model("b")  # again: nothing to do
    front.client.load_model("b")
    assert front.client.is_model_ready("b")
    assert front.client.is_server_ready()
    assert front.factor("b") == 2.0


def test_load_follows_the_promotion_of_one_model(front: Front, server: Models, versions: dict[str, str]) -> None:
    promotions = Promotions(deployment(server.folder / "c", name="c"))
    try:
        promotions.registry.promote("c", versions["second"], "onnx")
        front.client.load_model("c")
        assert front.factor("c") == 5.0
        assert front.factor("b") == 2.0
        assert front.client.is_model_ready("c", versions["second"])
        assert front.metadata("c")["versions"] == [versions["second"]]
    finally:
        promotions.registry.promote("c", versions["first"], "onnx")
        front.client.load_model("c")
    assert front.factor("c") == 3.0


def test_traffic_to_one_model_while_another_is_loaded_and_unloaded(front: Front, server: Models) -> None:
    errors: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        mine = Front("grpc", server)
        while not stop.is_set():
            try:
                assert mine.factor("a") == 1.0
            except InferenceServerException as error:
                errors.append(str(error))
        mine.client.close()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            front.client.unload_model("b")
            front.client.load_model("b")
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert errors == []


def test_a_new_folder_a_broken_one_and_its_mending(front: Front, server: Models) -> None:
    name = f"new_{front.kind}"
    file = add_model(server.folder, name, 7.0, "[slo]\np95 = 5\n")
    assert front.index()[name, ""] == "UNAVAILABLE"
    assert "slo.p95: 5 has no unit" in front.reason(name)
    assert "slo.p95" in front.refused(lambda: front.client.load_model(name)).message()
    assert "failed to load" in front.refused(lambda: front.factor(name)).message()
    assert not front.client.is_model_ready(name)
    assert front.client.is_server_ready(), "nobody required it"
    file.write_text(file.read_text().replace("p95 = 5", 'p95 = "50ms"'))
    front.client.load_model(name)
    assert front.client.is_model_ready(name)
    assert front.factor(name) == 7.0
    assert front.index()[name, "source"] == "READY"
    assert front.factor("a") == 1.0
    front.client.unload_model(name)
    file.rename(file.with_name("tailcut.toml.away"))


# -- Other ways to name the models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["manifests", "host.toml"])
def test_models_named_by_manifests_or_by_a_host_file(tmp_path: Path, named: str) -> None:
    a, b = add_model(tmp_path, "a", 1.0), add_model(tmp_path, "b", 2.0)
    what: tuple[str, ...] = ("-m", str(a), "-m", str(b))
    if named == "host.toml":
        (tmp_path / "host.toml").write_text(
            '[[models]]\npath = "a"\n[[models]]\npath = "b/tailcut.toml"\nrequired = false\n'
        )
        what = (str(tmp_path / "host.toml"),)
    with Models(tmp_path, what) as server:
        # The server is ready without a model that is not required.
        server.wait_until(lambda: server.request("GET", "/v2/models/b/ready")[0] == 200)
        for kind in ("http", "grpc"):
            front = Front(kind, server)
            assert [front.factor(name) for name in "ab"] == [1.0, 2.0]
            front.client.unload_model("b")
            assert front.client.is_server_ready() == (named == "host.toml")
            front.client.load_model("b")
            front.client.close()
        for line in server.log.splitlines():
            assert " is ready" not in line or line.split()[2] in {"a", "b"}
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_start_that_fails_for_all_models_ends_with_an_error(tmp_path: Path) -> None:
    add_models(tmp_path, a=1.0, b=2.0)
    for name in "ab":
        (tmp_path / name / "model.onnx").write_bytes(b"nonsense")
    with Served(tmp_path, prepared=True, wait=False, what=(str(tmp_path),)) as server:
        assert server.wait() == 3
        assert "model.onnx" in server.log
