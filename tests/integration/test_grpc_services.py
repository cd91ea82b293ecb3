"""The gRPC server beside inference: health, reflection, tokens, TLS, streams of parts, malformed messages, start-up."""

from __future__ import annotations

import hashlib
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.grpc_kit import InProcess, in_process, message, unary
from tests.integration.servers import free_port
from tests.integration.serving import Served
from tests.integration.test_serve_secure import make_certificate
from tritonclient.utils import InferenceServerException

from tailcut.common.tensors import Arrays
from tailcut.errors import MissingExtra
from tailcut.models import variant_loader
from tailcut.testing.runtimes import CallableRuntime
from tailcut.transport import lifecycle
from tailcut.transport.grpc.server import SERVICE

pytestmark = pytest.mark.integration

ROW = np.array([[1, 2]], dtype=np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with in_process(tmp_path_factory.mktemp("services"), overrides=("server.max_body=1MB",)) as running:
        yield running


@pytest.fixture
def channel(server: InProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.url) as found:
        yield found


def tensor(rows: Any = ROW) -> triton.InferInput:
    found = triton.InferInput("x", list(rows.shape), "FP32")
    found.set_data_from_numpy(rows)
    return found


# -- Health and reflection, with gRPC's own clients ------------------------------------------------------------------


def test_health_is_readiness(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        found = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert found.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_is_watched_from_before_the_load_to_the_stop(tmp_path: Path) -> None:
    with in_process(tmp_path, load=False) as running, grpc.insecure_channel(running.url) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        running.call(running.engine.start())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        running.loop.call_soon_threadsafe(running.engine.drain)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        running.call(running.server.stop(20.0))
        assert list(watch) == []  # ended, not broken off


def test_an_unknown_service_is_watched_as_unknown(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="other"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_reflection_says_what_there_is(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    pool = DescriptorPool(database)
    assert "ModelInfer" in pool.FindServiceByName(SERVICE).methods_by_name
    request = pool.FindMessageTypeByName("inference.ModelInferRequest")
    assert request.fields_by_name["raw_input_contents"].number == 7
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("inference.Nothing")


# -- Tokens and TLS --------------------------------------------------------------------------------------------------


def test_tokens_are_asked_for_as_over_http(tmp_path: Path) -> None:
    digests = [f"{hashlib.sha256(token).hexdigest()} {tenant}\n" for token, tenant in ((b"one", ""), (b"two", "acme"))]
    (tmp_path / "tokens").write_text("".join(digests))
    overrides = ('server.tokens="tokens"',)
    good = {"authorization": "Bearer two"}
    with in_process(tmp_path, overrides=overrides) as running, triton.InferenceServerClient(running.url) as client:
        for headers in ({}, {"authorization": "Bearer three"}):
            for ask in (
                lambda headers=headers: client.infer("m", [tensor()], headers=headers),
                lambda headers=headers: client.get_model_metadata("m", headers=headers),
                lambda headers=headers: client.get_inference_statistics(headers=headers),
                lambda headers=headers: client.get_model_repository_index(headers=headers),
            ):
                with pytest.raises(InferenceServerException) as caught:
                    ask()
                assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.infer("m", [tensor()], headers=good).as_numpy("y").tolist() == [3.0]
        assert client.get_model_config("m", headers=good).config.name == "m"
        assert client.is_server_ready()  # for load balancers, which have no token


def test_management_has_tokens_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "managers").write_text(hashlib.sha256(b"boss").hexdigest())
    overrides = ('server.management_tokens="managers"',)
    with in_process(tmp_path, overrides=overrides) as running, triton.InferenceServerClient(running.url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.unload_model("m")
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        client.unload_model("m", headers={"authorization": "Bearer boss"})
        assert not client.is_server_ready()


def test_tls(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path)
    overrides = ('server.tls_cert="tls.crt"', 'server.tls_key="tls.key"')
    with in_process(tmp_path, overrides=overrides) as running:
        with triton.InferenceServerClient(running.url, ssl=True, root_certificates=str(cert)) as client:
            assert client.infer("m", [tensor()]).as_numpy("y").tolist() == [3.0]
        with triton.InferenceServerClient(running.url) as client, pytest.raises(InferenceServerException):
            client.infer("m", [tensor()], client_timeout=5)


def test_requests_are_in_the_access_log(tmp_path: Path) -> None:
    port = free_port()
    settings = [f"server.grpc_port={port}", 'server.access_log="access.log"', 'server.access_log_share="100%"']
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    with Served(tmp_path, settings=settings) as served:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            unary(channel)(message().SerializeToString(), metadata=(("traceparent", parent),))
            with pytest.raises(grpc.RpcError):
                unary(channel)(message(model_name="other").SerializeToString())
            list(channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter([message().SerializeToString()])))

        def lines() -> list[Any]:
            logged = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
            return [line for line in logged if line["method"] == "GRPC"]

        served.wait_until(lambda: len(lines()) == 3)
        good, wrong, streamed = lines()
        assert (good["path"], good["status"], good["trace"]) == (f"/{SERVICE}/ModelInfer", "OK", parent)
        assert good["variant"] == "source"
        assert good["bytes"] > 0
        assert (wrong["status"], wrong["error"]) == ("NOT_FOUND", {"code": "not_found"})
        assert (streamed["path"], streamed["status"]) == (f"/{SERVICE}/ModelStreamInfer", "OK")


# -- Models that stream ----------------------------------------------------------------------------------------------


def parts(inputs: Arrays) -> Iterator[Arrays]:
    """As many parts as the first value says; a negative one fails after two."""
    first = inputs["x"][:, :1]
    for n in range(int(abs(first[0, 0]))):
        if first[0, 0] < 0 and n == 2:
            raise RuntimeError("the model broke in the middle")
        yield {"y": n * first[:, 0], "z": inputs["x"]}


@pytest.fixture
def streaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    runtime = CallableRuntime(parts, lambda inputs: {"y": inputs["x"][:, 0], "z": inputs["x"]})
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    with in_process(tmp_path, overrides=("slo.timeout=20s", "server.kill=30s")) as running:
        yield running


def streamed(running: InProcess, count: int, rows: Any, **options: Any) -> list[tuple[Any, Any]]:
    """Ask one request on a stream; what was answered, at most ``count`` responses."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(running.url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("m", [tensor(rows)], request_id="7", **options)
        found = [answers.get(timeout=30) for _ in range(count)]
        client.stop_stream()
    assert answers.empty()
    return found


@pytest.mark.parametrize("wants_final", [True, False])
def test_a_model_that_streams_answers_in_parts(streaming: InProcess, wants_final: bool) -> None:
    with triton.InferenceServerClient(streaming.url) as client:
        assert client.get_model_config("m").config.model_transaction_policy.decoupled
    rows = np.array([[3, 0]], np.float32)
    found = streamed(streaming, 3 + wants_final, rows, enable_empty_final_response=wants_final)
    assert [error for _, error in found if error is not None] == []
    responses = [result.get_response() for result, _ in found]
    assert {response.id for response in responses} == {"7"}
    finals = [response.parameters["triton_final_response"].bool_param for response in responses]
    assert finals == [False] * 3 + [True] * wants_final
    assert [float(result.as_numpy("y")[0]) for result, _ in found[:3]] == [0.0, 3.0, 6.0]
    assert [len(response.outputs) for response in responses[3:]] == [0] * wants_final
    streaming.wait_until(lambda: streaming.counts("grpc_stream") == {"ok": 1})


def test_a_stream_that_breaks_says_so_after_its_parts(streaming: InProcess) -> None:
    found = streamed(streaming, 3, np.array([[-5, 0]], np.float32))
    assert [error is None for _, error in found] == [True, True, False]
    assert "[request id: 7]" in found[2][1].message()
    ((_, error),) = streamed(streaming, 1, np.ones((2, 2), np.float32))
    assert "has 2 rows, but model 'm' streams one row per request" in error.message()


def test_a_model_that_streams_answers_whole_too(streaming: InProcess) -> None:
    with triton.InferenceServerClient(streaming.url) as client:
        assert client.infer("m", [tensor()]).as_numpy("y").tolist() == [1.0]


# -- Whatever comes ----------------------------------------------------------------------------------------------------


METHODS = ("ModelInfer", "ModelMetadata", "ModelStatistics", "RepositoryModelLoad")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from(METHODS))
def test_no_bytes_are_an_error_of_the_servers(channel: grpc.Channel, raw: bytes, method: str) -> None:
    status = grpc.StatusCode.OK
    try:
        unary(channel, method)(raw, timeout=20)
    except grpc.RpcError as error:
        status = error.code()
    assert status.name in {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}


def test_bytes_that_are_no_message_on_a_stream(channel: grpc.Channel) -> None:
    stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    good = message(id="good").SerializeToString()
    answers = list(stream(iter([b"\xff\xff", good]), timeout=20))
    assert len(answers) == 2
    assert b"not a ModelInferRequest" in b"".join(answers)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_over_the_limit_is_refused_however_small_it_is_compressed(
    server: InProcess, compression: grpc.Compression
) -> None:
    large = message(raw_input_contents=[b"\0" * 20_000_000]).SerializeToString()
    with grpc.insecure_channel(server.url) as channel, pytest.raises(grpc.RpcError) as caught:
        unary(channel)(large, compression=compression, timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_many_at_once_are_each_answered(server: InProcess) -> None:
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            with triton.InferenceServerClient(server.url) as client:
                for number in range(50):
                    found = client.infer("m", [tensor(np.full((1, 2), number, np.float32))], client_timeout=20)
                    assert found.as_numpy("y").tolist() == [2.0 * number]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


# -- Start-up ----------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Served(tmp_path, settings=[f"server.grpc_port={port}"], wait=False) as served:
            assert served.wait() != 0
            assert f"cannot listen on 127.0.0.1:{port}" in served.log
            assert "server.grpc_port" in served.log


def test_one_port_for_both_is_refused(tmp_path: Path) -> None:
    port = free_port()
    with Served(tmp_path, settings=[f"server.grpc_port={port}"], port=port, wait=False) as served:
        assert served.wait() != 0
        assert "which is also the HTTP port" in served.log


def test_grpc_is_not_imported_where_it_is_off() -> None:
    script = "import sys, tailcut.transport.lifecycle, tailcut.transport.asgi; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_package_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra) as caught:
        lifecycle.check_grpc("127.0.0.1", free_port(), 8700)
    assert caught.value.hint == "pip install 'tailcut[grpc]'"
