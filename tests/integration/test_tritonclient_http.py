"""tritonclient, unmodified, over a socket: what users of Triton call works against tailcut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.serving import HOST, Served
from tests.promotion_kit import Promotions, deployment

pytestmark = [
    pytest.mark.integration,
    # gevent and its HTTP client, at import and at their end; none of it is tailcut's.
    pytest.mark.filterwarnings("ignore"),
]

http = pytest.importorskip("tritonclient.http", exc_type=ImportError)

from tritonclient.http import aio  # noqa: E402  # only where there is one
from tritonclient.utils import InferenceServerException  # noqa: E402

X = np.array([[1, 2], [3, 4]], np.float32)


class Versions:
    """A server with two versions in its registry, the first of which is promoted."""

    def __init__(self, server: Served, promotions: Promotions, first: str, second: str) -> None:
        self.server = server
        self.promotions = promotions
        self.first = first
        self.second = second
        self.url = f"{HOST}:{server.port}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    directory = tmp_path_factory.mktemp("triton")
    promotions = Promotions(deployment(directory))
    first, second = promotions.add(1.0), promotions.add(3.0)
    promotions.promote(first)
    with Served(directory, settings=('serve.follow="0s"',), prepared=True) as server:
        yield Versions(server, promotions, first.id, second.id)


@pytest.fixture
def client(served: Versions) -> Iterator[Any]:
    found = http.InferenceServerClient(served.url, concurrency=4)
    try:
        yield found
    finally:
        found.close()


def inputs(binary: bool, kind: Any = http) -> list[Any]:
    tensor = kind.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return [tensor]


def check(result: Any, factor: float = 1.0) -> None:
    np.testing.assert_array_equal(result.as_numpy("y"), factor * X.sum(axis=1))
    assert result.as_numpy("y").dtype == np.float32
    if result.get_output("z") is not None:
        np.testing.assert_array_equal(result.as_numpy("z"), factor * X)


@pytest.mark.parametrize("raw_in", [True, False])
@pytest.mark.parametrize("raw_out", [True, False, None])
def test_infer(client: Any, raw_in: bool, raw_out: bool | None) -> None:
    outputs = None
    if raw_out is not None:
        outputs = [http.InferRequestedOutput(name, binary_data=raw_out) for name in ("y", "z")]
    result = client.infer("m", inputs(raw_in), outputs=outputs, request_id="r7", timeout=2_000_000)
    check(result)
    assert result.get_response()["id"] == "r7"
    assert result.get_response()["model_name"] == "m"


def test_infer_of_one_output(client: Any) -> None:
    result = client.infer("m", inputs(True), outputs=[http.InferRequestedOutput("y")])
    check(result)
    assert result.as_numpy("z") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_infer_with_compressed_bodies(client: Any, algorithm: str) -> None:
    for binary in (True, False):
        check(
            client.infer(
                "m",
                inputs(binary),
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
        )


def test_async_infer(client: Any) -> None:
    waiting = [client.async_infer("m", inputs(n % 2 == 0)) for n in range(20)]
    for request in waiting:
        check(request.get_result())


def test_aio_infer(served: Versions) -> None:
    async def main() -> None:
        async with aio.InferenceServerClient(served.url) as client:
            assert await client.is_server_live()
            assert await client.is_model_ready("m")
            for result in await asyncio.gather(*(client.infer("m", inputs(n % 2 == 0)) for n in range(10))):
                check(result)
            assert (await client.get_model_metadata("m"))["name"] == "m"
            assert (await client.get_model_config("m"))["max_batch_size"] == 4
            assert (await client.get_inference_statistics("m"))["model_stats"][0]["inference_count"] >= 20
            assert len(await client.get_model_repository_index()) == 2

    asyncio.run(main())


def test_readiness_and_metadata(client: Any, served: Versions) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", served.first)
    assert not client.is_model_ready("m", served.second)
    assert not client.is_model_ready("other")
    server = client.get_server_metadata()
    assert server["name"] == "tailcut"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(server["extensions"])
    for version in ("", served.first):
        model = client.get_model_metadata("m", version)
        assert model["versions"] == [served.first]
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]


def test_config(client: Any, served: Versions) -> None:
    config = client.get_model_config("m", served.first)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert config["output"][0] == {
        "name": "y",
        "data_type": "TYPE_FP32",
        "dims": [1],
        "reshape": {"shape": []},
    }
    assert config["backend"] == "onnxruntime"


def test_statistics_count_what_was_computed(client: Any, served: Versions) -> None:
    before = client.get_inference_statistics("m")["model_stats"][0]
    client.infer("m", inputs(True))
    client.infer("m", inputs(True), model_version=served.first)
    with pytest.raises(InferenceServerException):
        client.infer("m", [http.InferInput("x", [1, 2], "INT64")])
    (after,) = client.get_inference_statistics("m", served.first)["model_stats"]
    assert client.get_inference_statistics()["model_stats"][0]["name"] == "m"
    assert after["version"] == served.first
    assert after["inference_count"] - before["inference_count"] == 4
    assert after["execution_count"] - before["execution_count"] == 2
    assert after["last_inference"] >= before["last_inference"] > 1_600_000_000_000
    success, failed = (
        after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
        for name in ("success", "fail")
    )
    assert (success, failed) == (2, 1)
    by_rows = {each["batch_size"]: each["compute_infer"] for each in after["batch_stats"]}
    assert by_rows[2]["count"] >= 2
    assert by_rows[2]["ns"] > 0


def test_errors_say_what_is_wrong(client: Any, served: Versions) -> None:
    for name, version, says in (
        ("other", "", "model 'other' is unknown"),
        ("m", served.second, "has no version"),
    ):
        with pytest.raises(InferenceServerException, match=says) as caught:
            client.infer(name, inputs(True), model_version=version)
        assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="output 'q' is unknown"):
        client.infer("m", inputs(True), outputs=[http.InferRequestedOutput("q")])
    with pytest.raises(InferenceServerException, match="classification"):
        client.infer("m", inputs(True), outputs=[http.InferRequestedOutput("y", class_count=2)])
    with pytest.raises(InferenceServerException, match="sequence_id"):
        client.infer("m", inputs(True), sequence_id=7)


def test_repository_index_load_and_unload(client: Any, served: Versions) -> None:
    index = {each["version"]: each for each in client.get_model_repository_index()}
    assert {version: each["state"] for version, each in index.items()} == {
        served.first: "READY",
        served.second: "UNAVAILABLE",
    }
    client.unload_model("m")
    assert not client.is_model_ready("m")
    with pytest.raises(InferenceServerException, match="is unloaded"):
        client.infer("m", inputs(True))
    client.load_model("m")
    assert client.is_model_ready("m")
    check(client.infer("m", inputs(True)))
    served.promotions.registry.promote("m", served.second, "onnx")
    check(client.infer("m", inputs(True)))
    client.load_model("m")
    check(client.infer("m", inputs(True)), 3.0)
    assert client.is_model_ready("m", served.second)
    versions = [each["version"] for each in client.get_inference_statistics("m")["model_stats"]]
    assert versions == [served.second, served.first]
    with pytest.raises(InferenceServerException, match="config"):
        client.load_model("m", config="{}")
    with pytest.raises(InferenceServerException, match="unknown"):
        client.load_model("other")
    served.promotions.registry.promote("m", served.first, "onnx")
    client.load_model("m")
    check(client.infer("m", inputs(True)))
