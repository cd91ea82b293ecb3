"""Triton's own gRPC client, unmodified, against ``tailcut serve``; and what it sees when the model hangs or fails."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor import FieldDescriptor
from tests.app_kit import samples
from tests.grpc_kit import InProcess, faulty_runtime, in_process, message, unary
from tests.integration.servers import free_port
from tests.integration.serving import Served
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tailcut.testing.runtimes import FaultyRuntime
from tailcut.transport.grpc import open_inference_pb2

pytestmark = pytest.mark.integration

ROWS = np.array([[1, 2], [3, 4]], dtype=np.float32)


class Both(Served):
    """``tailcut serve`` on an HTTP and a gRPC port."""

    def __init__(self, directory: Path, settings: tuple[str, ...] = ()) -> None:
        self.grpc_port = free_port()
        super().__init__(directory, settings=[f"server.grpc_port={self.grpc_port}", *settings])

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


def tensor(rows: Any = ROWS, name: str = "x") -> triton.InferInput:
    """An input of the small model."""
    found = triton.InferInput(name, list(rows.shape), "FP32")
    found.set_data_from_numpy(rows)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with Both(tmp_path_factory.mktemp("grpc"), ("server.tenant_header=x-tenant", "server.max_body=1MB")) as served:
        yield served


@pytest.fixture
def client(server: Both) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url) as found:
        found.register_plugin(_Tenant())
        yield found


class _Tenant(triton.InferenceServerClientPlugin):  # type: ignore[misc]
    def __call__(self, request: Any) -> None:
        request.headers.setdefault("x-tenant", "someone")


# -- Answers ---------------------------------------------------------------------------------------------------------


def test_health_metadata_and_configuration(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "source")
    assert not client.is_model_ready("m", "9"), "Triton answers so too, without an error"
    assert not client.is_model_ready("other")
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "tailcut"
    assert {"model_configuration", "parameters"} <= set(server["extensions"])
    model = client.get_model_metadata("m")
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [("x", "FP32", [-1, 2])]
    assert [one.name for one in model.outputs] == ["y", "z"]
    assert list(model.versions) == ["source"]
    config = client.get_model_config("m").config
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 4)
    assert [(one.name, list(one.dims)) for one in config.input] == [("x", [2])]
    assert config.HasField("dynamic_batching")


def test_inference_of_all_and_of_named_outputs(client: triton.InferenceServerClient) -> None:
    answer = client.infer("m", [tensor()], request_id="7")
    assert answer.as_numpy("y").tolist() == [3.0, 7.0]
    assert answer.as_numpy("z").tolist() == [[2.0, 4.0], [6.0, 8.0]]
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("7", "m", "source")
    one = client.infer("m", [tensor()], model_version="source", outputs=[triton.InferRequestedOutput("z")])
    assert one.as_numpy("y") is None
    assert one.as_numpy("z").tolist() == [[2.0, 4.0], [6.0, 8.0]]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client: triton.InferenceServerClient, algorithm: str) -> None:
    answer = client.infer("m", [tensor()], compression_algorithm=algorithm)
    assert answer.as_numpy("y").tolist() == [3.0, 7.0]


def _putting(answers: queue.Queue[tuple[Any, Any]]) -> Any:
    return lambda result, error: answers.put((result, error))


def test_asynchronous_inference_answers_all(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for number in range(12):
        rows = np.full((1, 2), number, np.float32)
        client.async_infer("m", [tensor(rows)], _putting(answers), request_id=str(number))
    found = [answers.get(timeout=30) for _ in range(12)]
    assert [str(error) for _, error in found if error is not None] == []
    sums = {int(result.get_response().id): float(result.as_numpy("y")[0]) for result, _ in found}
    assert sums == {number: 2.0 * number for number in range(12)}


def test_a_stream_answers_every_request_under_its_id(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(_putting(answers))
    for number in range(16):
        rows = np.full((1, 2), number, np.float32)
        client.async_stream_infer("m", [tensor(rows)], request_id=str(number), enable_empty_final_response=True)
    client.async_stream_infer("other", [tensor()], request_id="wrong")
    client.stop_stream()
    found = [answers.get(timeout=30) for _ in range(17)]
    assert answers.empty()
    sums = {int(result.get_response().id): float(result.as_numpy("y")[0]) for result, error in found if error is None}
    assert sums == {number: 2.0 * number for number in range(16)}
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in found if result]
    assert finals == [True] * 16
    (error,) = [error for _, error in found if error is not None]
    assert error.message().startswith("[request id: wrong] model 'other' is unknown")


def test_the_asyncio_client(server: Both) -> None:
    async def requests() -> Any:
        for number in range(10):
            inputs = [tensor(np.full((1, 2), number, np.float32))]
            yield {"model_name": "m", "inputs": inputs, "request_id": str(number)}

    async def main() -> None:
        headers = {"x-tenant": "someone"}
        async with triton_aio.InferenceServerClient(server.url) as client:
            assert await client.is_server_ready()
            answers = await asyncio.gather(*[client.infer("m", [tensor()], headers=headers) for _ in range(10)])
            assert [answer.as_numpy("y").tolist() for answer in answers] == [[3.0, 7.0]] * 10
            found = {}
            async for answer, error in client.stream_infer(requests(), headers=headers):
                assert error is None
                found[answer.get_response().id] = float(answer.as_numpy("y")[0])
            assert found == {str(number): 2.0 * number for number in range(10)}

    asyncio.run(main())


def test_statistics_and_the_repository(client: triton.InferenceServerClient) -> None:
    client.infer("m", [tensor()])
    (found,) = client.get_inference_statistics("m").model_stats
    assert (found.name, found.version) == ("m", "source")
    assert found.inference_stats.success.count >= 1
    assert found.inference_stats.compute_infer.ns > 0
    assert found.inference_count >= 2
    assert [one.name for one in client.get_inference_statistics().model_stats] == ["m"]
    (entry,) = client.get_model_repository_index().models
    assert (entry.name, entry.version, entry.state) == ("m", "source", "READY")
    client.unload_model("m")
    assert not client.is_server_ready()
    with pytest.raises(InferenceServerException, match="unloaded") as caught:
        client.infer("m", [tensor()])
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    client.load_model("m")
    assert client.is_model_ready("m")
    for call in (lambda: client.load_model("other"), lambda: client.get_inference_statistics("m", "9")):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="parameter 'config' of load is not supported"):
        client.load_model("m", config="{}")


def test_every_message_has_the_fields_of_tritons_own() -> None:
    """What is on the wire: names, numbers and kinds, of every message and field that tailcut has."""
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name}
    for dependency in service_pb2.DESCRIPTOR.dependencies:
        theirs |= dependency.message_types_by_name
    ours = open_inference_pb2.DESCRIPTOR
    assert ours.package == service_pb2.DESCRIPTOR.package
    waiting = [(message, theirs[name]) for name, message in ours.message_types_by_name.items()]
    seen = 0
    while waiting:
        mine, other = waiting.pop()
        fields = other.fields_by_name
        for field in mine.fields:
            assert _wire(field) == _wire(fields[field.name]), field.full_name
            seen += 1
        waiting += [(nested, other.nested_types_by_name[nested.name]) for nested in mine.nested_types]
    assert seen > 100
    for name, service in ours.services_by_name.items():
        other = service_pb2.DESCRIPTOR.services_by_name[name]
        for method in service.methods:
            their = other.methods_by_name[method.name]
            assert method.input_type.full_name == their.input_type.full_name
            assert method.output_type.full_name == their.output_type.full_name


def _wire(field: FieldDescriptor) -> tuple[Any, ...]:
    kind = field.message_type.full_name if field.message_type else field.enum_type and field.enum_type.full_name
    return field.name, field.number, field.type, field.label, kind


# -- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"model_name": "other"}, "NOT_FOUND", "model 'other' is unknown"),
        ({"model_version": "9"}, "NOT_FOUND", "has no version '9'"),
        ({"inputs": [tensor(name="w")]}, "INVALID_ARGUMENT", "input 'x' is missing"),
        ({"inputs": []}, "INVALID_ARGUMENT", "input 'x' is missing"),
        ({"inputs": [tensor(np.ones((1, 3), np.float32))]}, "INVALID_ARGUMENT", "has shape [1, 3]"),
        ({"inputs": [tensor(np.full((1, 2), np.nan, np.float32))]}, "INVALID_ARGUMENT", "NaN (in JSON null) in row 0"),
        ({"inputs": [tensor(np.ones((17, 2), np.float32))]}, "RESOURCE_EXHAUSTED", "17 rows, the limit is 16"),
        ({"inputs": [tensor(np.ones((200_000, 2), np.float32))]}, "RESOURCE_EXHAUSTED", "larger than max"),
        ({"outputs": [triton.InferRequestedOutput("w")]}, "INVALID_ARGUMENT", "output 'w' is unknown"),
        ({"outputs": [triton.InferRequestedOutput("y", class_count=2)]}, "INVALID_ARGUMENT", "classification"),
        ({"sequence_id": 5, "sequence_start": True}, "INVALID_ARGUMENT", "sequence_id"),
        ({"timeout": -1}, "INVALID_ARGUMENT", "parameter timeout is -1"),
        ({"timeout": 1}, "DEADLINE_EXCEEDED", "deadline passed"),
        ({"headers": {"x-tenant": ""}}, "INVALID_ARGUMENT", "header x-tenant is missing"),
        ({"headers": {"x-tenant": "a", "x-tailcut-timeout-ms": "soon"}}, "INVALID_ARGUMENT", "x-tailcut-timeout-ms"),
    ],
)
def test_errors_by_status(
    client: triton.InferenceServerClient, changes: dict[str, Any], status: str, said: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(**{"model_name": "m", "inputs": [tensor()], **changes})
    assert caught.value.status() == f"StatusCode.{status}"
    assert said in caught.value.message()


def test_two_tenants_are_none(server: Both) -> None:
    with grpc.insecure_channel(server.url) as channel, pytest.raises(grpc.RpcError) as caught:
        unary(channel)(message().SerializeToString(), metadata=(("x-tenant", "a"), ("x-tenant", "b")), timeout=20)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "more than once" in caught.value.details()


def test_shared_memory_is_refused_by_name(client: triton.InferenceServerClient) -> None:
    shared = triton.InferInput("x", [1, 2], "FP32")
    shared.set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match="shared memory"):
        client.infer("m", [shared])
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory("region", 8)
    with pytest.raises(InferenceServerException, match="shared memory"):
        client.infer("m", [tensor()], outputs=[output])


def test_requests_are_counted_beside_those_of_http(server: Both, client: triton.InferenceServerClient) -> None:
    name = "tailcut_requests_total"
    before = samples(server.metrics(), name).get(("grpc_infer", "source", "ok", "off"), 0)
    client.infer("m", [tensor()])
    assert samples(server.metrics(), name)["grpc_infer", "source", "ok", "off"] == before + 1


# -- Faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyRuntime:
    return faulty_runtime(monkeypatch)


REFUSED = ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED")
THREAD = ("pool.executor=thread", "pool.executors=1", "slo.timeout=20s", "server.kill=30s")


@pytest.fixture
def hanging(tmp_path: Path, faulty: FaultyRuntime) -> Iterator[InProcess]:
    with in_process(tmp_path, overrides=THREAD) as running:
        faulty.hang()
        try:
            yield running
        finally:
            faulty.release()


def test_cancelling_drops_what_waits(hanging: InProcess, faulty: FaultyRuntime) -> None:
    ended: queue.Queue[Any] = queue.Queue()
    scheduler = hanging.engine.pipeline.serving.dispatcher.scheduler
    with triton.InferenceServerClient(hanging.url) as client:
        first = client.async_infer("m", [tensor()], lambda result, error: ended.put(error))
        assert faulty.entered.wait(30)
        waiting = client.async_infer("m", [tensor()], lambda result, error: ended.put(error))
        hanging.wait_until(lambda: scheduler.waiting.rows == 2)
        waiting.cancel()
        assert ended.get(timeout=30).status() == "StatusCode.CANCELLED"
        hanging.wait_until(lambda: scheduler.waiting.rows == 0)
        assert hanging.counts("grpc_infer") == {"client_gone": 1}
        faulty.release()
        assert ended.get(timeout=30) is None
        del first
    hanging.wait_until(lambda: hanging.counts("grpc_infer") == {"client_gone": 1, "ok": 1})


@pytest.mark.parametrize("limits", [{"timeout": 300_000}, {"client_timeout": 0.3}])
def test_a_deadline_ends_the_request_while_the_model_hangs(
    hanging: InProcess, faulty: FaultyRuntime, limits: dict[str, Any]
) -> None:
    with triton.InferenceServerClient(hanging.url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [tensor()], **limits)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    hanging.wait_until(lambda: sum(hanging.counts("grpc_infer").values()) == 1)
    assert hanging.counts("grpc_infer").keys() <= {"infer_timeout", "queue_timeout", "deadline_exceeded"}


def test_a_full_queue_says_when_to_come_back(hanging: InProcess, faulty: FaultyRuntime) -> None:
    with ThreadPoolExecutor(8) as threads, triton.InferenceServerClient(hanging.url) as client:
        four = tensor(np.ones((4, 2), np.float32))
        waiting = [threads.submit(client.infer, "m", [four])]
        assert faulty.entered.wait(30)
        waiting += [threads.submit(client.infer, "m", [four]) for _ in range(4)]
        hanging.wait_until(lambda: hanging.engine.pipeline.serving.dispatcher.scheduler.waiting.rows == 16)
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [four])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        faulty.release()
        for answer in waiting:
            assert answer.result(30).as_numpy("y").tolist() == [2.0] * 4


def test_a_failing_model_fails_its_batch_only(tmp_path: Path, faulty: FaultyRuntime) -> None:
    with in_process(tmp_path) as running, triton.InferenceServerClient(running.url) as client:
        faulty.fail()
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [tensor()])
        assert caught.value.status() == "StatusCode.INTERNAL"
        assert client.infer("m", [tensor()]).as_numpy("y").tolist() == [3.0, 7.0]


def test_not_ready_before_the_model_is_loaded(tmp_path: Path) -> None:
    with in_process(tmp_path, load=False) as running, triton.InferenceServerClient(running.url) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("m")
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [tensor()])
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        running.call(running.engine.start())
        assert client.is_server_ready()
        assert client.infer("m", [tensor()]).as_numpy("y").tolist() == [3.0, 7.0]


def test_a_client_that_vanishes_from_its_stream_leaves_nothing_behind(
    hanging: InProcess, faulty: FaultyRuntime
) -> None:
    client = triton.InferenceServerClient(hanging.url)
    client.start_stream(lambda result, error: None)
    for _ in range(3):
        client.async_stream_infer("m", [tensor()])
    assert faulty.entered.wait(30)
    hanging.wait_until(lambda: len(hanging.engine.in_flight) == 3)
    client.stop_stream(cancel_requests=True)
    client.close()
    hanging.wait_until(lambda: not hanging.engine.in_flight)
    assert hanging.counts("grpc_stream") == {"client_gone": 3}


def test_stopping_answers_what_was_begun_and_ends_idle_streams(hanging: InProcess, faulty: FaultyRuntime) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(hanging.url) as client:
        client.start_stream(_putting(answers))
        client.async_stream_infer("m", [tensor()], request_id="begun")
        assert faulty.entered.wait(30)
        stopping = asyncio.run_coroutine_threadsafe(hanging.server.stop(20.0), hanging.loop)
        faulty.release()
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().id == "begun"
        stopping.result(30)
        _, error = answers.get(timeout=30)
        assert error.status() == "StatusCode.UNAVAILABLE"


def test_sigterm_under_load_fails_no_request_that_was_begun(tmp_path: Path) -> None:
    """What reaches the server as it closes is refused: as unavailable, or cancelled by gRPC's core unread."""
    with Both(tmp_path, ("server.drain=500ms",)) as server, triton.InferenceServerClient(server.url) as client:
        answered = threading.Event()
        statuses: list[str] = []

        def ask() -> None:
            try:
                while True:
                    client.infer("m", [tensor()])
                    answered.set()
            except InferenceServerException as error:
                statuses.append(f"{error.status()} {error.message()}")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert answered.wait(30)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        for thread in threads:
            thread.join(30)
        assert len(statuses) == 4
        assert [status for status in statuses if not status.startswith(REFUSED)] == []


def test_grpc_itself_reads_the_status_and_what_is_beside_it(tmp_path: Path) -> None:
    """Without Triton's client: code, hint and retry are in the trailing metadata."""
    with in_process(tmp_path) as running, grpc.insecure_channel(running.url) as channel:
        _, call = unary(channel).with_call(message().SerializeToString())
        metadata = dict(call.trailing_metadata())
        assert metadata["x-tailcut-variant"] == "source"
        assert metadata["x-tailcut-cache"] == "off"
        assert "infer;dur=" in metadata["server-timing"]
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel)(message(model_name="ö\n").SerializeToString())
        metadata = dict(caught.value.trailing_metadata())
        assert metadata["x-tailcut-code"] == "not_found"
        assert metadata["x-tailcut-hint"] == "this server has 'm'"
