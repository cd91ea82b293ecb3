"""Limits over sockets: HTTP and gRPC in every form, by real servers, and what a metrics page says of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.app_kit import INFER, samples
from tests.bounds_kit import CITY, DECLARED, SHOP, TOKENS, deployed
from tests.grpc_kit import InProcess, in_process, unary
from tests.integration.serving import HOST, Served

from tailcut.common.tensors import Arrays
from tailcut.models import variant_loader
from tailcut.testing.runtimes import CallableRuntime
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tailcut.transport.grpc.server import SERVICE

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

RANGE = "allowed are 0 to 49"
SHOP_FIELD = '[[model.fields]]\nname = "shop"\ntype = "integer"\n'
TENSORS = {
    "shop": SHOP.format(limits=DECLARED) + SHOP_FIELD,
    "tokens": TOKENS,
    "city": CITY,
}
Ask = Callable[[str, Any], tuple[int, Any]]


def tensor(name: str, values: Any) -> dict[str, Any]:
    """A tensor in JSON, with the second input of the shops' model beside it."""
    datatype = "BYTES" if name == "city" else "INT64"
    return {"name": name, "shape": list(np.shape(values)), "datatype": datatype, "data": values}


def request(name: str, values: Any) -> dict[str, Any]:
    inputs = [tensor(name, values)]
    if name == "shop":
        inputs.append({"name": "x", "shape": [len(values), 2], "datatype": "FP32", "data": [0.0] * 2 * len(values)})
    return {"inputs": inputs}


@pytest.fixture(scope="module", params=list(TENSORS))
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[tuple[str, Served]]:
    folder = tmp_path_factory.mktemp(request.param)
    deployed(folder, TENSORS[request.param])
    with Served(folder, prepared=True) as found:
        yield request.param, found


GOOD: dict[str, Any] = {"shop": [0, 49], "tokens": [[0, 49, 1], [2, 3, 4]], "city": ["Rome", "Oslo"]}
BAD: dict[str, list[tuple[Any, str]]] = {
    "shop": [
        ([0, 50], f"input 'shop' holds 50 in row 1, {RANGE}"),
        ([-1, 0], f"input 'shop' holds -1 in row 0, {RANGE}"),
        ([0, 2**62], f"input 'shop' holds {2**62} in row 1, {RANGE}"),
    ],
    "tokens": [
        ([[1, 50]], f"input 'tokens' holds 50 in row 0, position 1, {RANGE}"),
        ([[1] * 7], "input 'tokens' has shape [1, 7], of which dimension 1 is 7, the limit is 6"),
    ],
    "city": [
        (["Rome", "Bonn"], "input 'city' holds 'Bonn' in row 1, allowed are 'Rome', 'Oslo'"),
        (["Rome", "Stuttgart"], "input 'city' has a text of 9 characters in row 1, the limit is 5"),
    ],
}


def binary(served: Served, name: str, values: Any) -> tuple[int, Any]:
    """Ask with the tensor raw, behind the JSON."""
    if name == "city":
        raw = b"".join(len(one.encode()).to_bytes(4, "little") + one.encode() for one in values)
    else:
        raw = np.array(values, "<i8").tobytes()
    body = request(name, values)
    del body["inputs"][0]["data"]
    body["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps(body).encode()
    connection = http.client.HTTPConnection(HOST, served.port, timeout=30)
    try:
        connection.request("POST", INFER, head + raw, {"inference-header-content-length": str(len(head))})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_http_answers_400_with_input_row_value_and_range(server: tuple[str, Served]) -> None:
    name, served = server
    ways: list[Ask] = [
        lambda name, values: served.post(INFER, request(name, values)),
        lambda name, values: binary(served, name, values),
        lambda name, values: binary(served, name, values),  # again: the head is known now
    ]
    refused = 0
    before = count(served, "bad_request")
    for ask in ways:
        assert ask(name, GOOD[name])[0] == 200
        for values, said in BAD[name]:
            status, reply = ask(name, values)
            assert (status, reply["code"], reply["error"]) == (400, "bad_request", said)
            assert reply["hint"]
            refused += 1
        assert ask(name, GOOD[name])[0] == 200
    assert count(served, "bad_request") - before == refused
    assert count(served, "inference_failed") == 0


def count(served: Served, outcome: str) -> float:
    """Inference requests that ended so."""
    found = samples(served.metrics(), "tailcut_requests_total")
    return sum(value for labels, value in found.items() if labels[0] == "infer" and outcome in labels)


def test_generate_and_predict_answer_400_too(server: tuple[str, Served]) -> None:
    name, served = server
    beside = {"x": [0, 0]} if name == "shop" else {}
    good, bad = (1, 50) if name == "shop" else ([1, 2], [1, 50]) if name == "tokens" else ("Rome", "Bonn")
    assert served.post("/v2/models/m/generate", {name: good, **beside})[0] == 200
    status, reply = served.post("/v2/models/m/generate", {name: bad, **beside})
    assert (status, reply["code"]) == (400, "bad_request")
    assert "allowed are" in reply["error"]
    columns = {"a": 0, "b": 0} if name == "shop" else {}
    assert served.post("/predict/m", {"rows": [{name: good, **columns}]})[0] == 200
    status, reply = served.post("/predict/m", {"rows": [{name: good, **columns}, {name: bad, **columns}]})
    assert (status, reply["code"]) == (400, "bad_request")
    assert "row 1" in reply["error"]


def test_what_the_description_allows_is_answered(server: tuple[str, Served]) -> None:
    """Values that are made from /openapi.json are within the limits: what is refused is refused for its shape."""
    _, served = server
    document = schemathesis.openapi.from_url(f"http://{HOST}:{served.port}/openapi.json")
    answered = 0

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=document["/v2/models/m/generate"]["POST"].as_strategy())
    def ask(case: Any) -> None:
        nonlocal answered
        case.headers.pop("x-tailcut-timeout-ms", None)  # which may be shorter than any answer takes
        response = case.call(timeout=30)
        assert response.status_code in {200, 400}, response.text
        if response.status_code == 400:
            assert "allowed are" not in response.text
            assert "the limit is" not in response.text
        answered += response.status_code == 200

    ask()
    assert answered


# -- gRPC ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_grpc(tmp_path: Path) -> Iterator[Callable[[str], InProcess]]:
    """Starts the gRPC server of a model."""
    with pytest.MonkeyPatch.context() as patch:
        stack: list[Any] = []

        def start(name: str) -> InProcess:
            patch.setattr("tests.grpc_kit.deployment", lambda folder, *_: deployed(folder, TENSORS[name]))
            context = in_process(tmp_path)
            stack.append(context)
            return context.__enter__()

        yield start
        for context in stack:
            context.__exit__(None, None, None)


def message(name: str, values: Any, *, raw: bool) -> bytes:
    inputs = [{key: value for key, value in tensor(name, values).items() if key != "data"}]
    texts = [one.encode() for one in values] if name == "city" else []
    numbers = [] if name == "city" else np.ravel(values).tolist()
    packed = [
        b"".join(len(one).to_bytes(4, "little") + one for one in texts) if texts else np.array(numbers, "<i8").tobytes()
    ]
    if not raw:
        inputs[0]["contents"] = {"bytes_contents": texts} if texts else {"int64_contents": numbers}
    if name == "shop":
        zeros = [0.0] * 2 * len(values)
        inputs.append({"name": "x", "shape": [len(values), 2], "datatype": "FP32"})
        packed.append(np.array(zeros, "<f4").tobytes())
        if not raw:
            inputs[1]["contents"] = {"fp32_contents": zeros}
    request = ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=packed if raw else [])
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("name", list(TENSORS))
def test_grpc_answers_invalid_argument(in_grpc: Callable[[str], InProcess], name: str, raw: bool) -> None:
    server = in_grpc(name)
    with grpc.insecure_channel(server.url) as channel:
        infer = unary(channel)
        good = message(name, GOOD[name], raw=raw)
        assert ModelInferResponse.FromString(infer(good)).outputs[0].name == "y"
        for values, said in BAD[name]:
            with pytest.raises(grpc.RpcError) as caught:
                infer(message(name, values, raw=raw))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in caught.value.details()
    assert server.counts("grpc_infer") == {"ok": 1, "bad_request": len(BAD[name])}


def test_a_stream_of_grpc_says_which_request_it_refused(
    in_grpc: Callable[[str], InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed: list[int] = []

    def stream(inputs: Arrays) -> Iterator[Arrays]:
        streamed.append(int(inputs["tokens"].max()))
        yield {"y": inputs["tokens"][:, 0].astype(np.float32)}

    def whole(inputs: Arrays) -> Arrays:
        return {"y": inputs["tokens"][:, 0].astype(np.float32)}

    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: CallableRuntime(stream, whole))
    server = in_grpc("tokens")
    with grpc.insecure_channel(server.url) as channel:
        method = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        sent = [message("tokens", [[token]], raw=True) for token in (49, 50, -1)]
        replies = [ModelStreamInferResponse.FromString(reply) for reply in method(iter(sent), timeout=30)]
    errors = sorted(reply.error_message for reply in replies if reply.error_message)
    assert [error.partition(" in row")[0] for error in errors] == [
        "input 'tokens' holds -1",
        "input 'tokens' holds 50",
    ]
    assert streamed == [49]
    assert server.counts("grpc_stream") == {"ok": 1, "bad_request": 2}
