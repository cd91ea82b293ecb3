"""Traces of a served model, over HTTP and gRPC, as a collector receives them; and collectors that fail."""

from __future__ import annotations

import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.app_kit import FEATURES, GOOD, INFER
from tests.collector_kit import TestCollector, attributes, collecting
from tests.grpc_kit import message, unary
from tests.integration.servers import free_port
from tests.integration.serving import HOST, Served
from tests.integration.test_serve_secure import make_certificate
from tests.trace_kit import parent

from tailcut.observe.traces.exporter import Collector
from tailcut.observe.traces.settings import ExportSettings

pytestmark = pytest.mark.integration


def check(collector: TestCollector, trace_id: int) -> dict[str, Any]:
    """The spans of a trace by name; they nest, and the stages sum to the request within 5 %."""
    spans = [span for span in collector.spans if int.from_bytes(span.trace_id, "big") == trace_id]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        above = by_id.get(span.parent_span_id)
        if above is not None:
            assert above.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= above.end_time_unix_nano
    (own,) = [span for span in spans if span.parent_span_id not in by_id]
    whole_ns = own.end_time_unix_nano - own.start_time_unix_nano
    parts_ns = sum(
        span.end_time_unix_nano - span.start_time_unix_nano for span in spans if span.parent_span_id == own.span_id
    )
    assert abs(parts_ns - whole_ns) <= 0.05 * whole_ns
    assert abs(own.start_time_unix_nano - time.time_ns()) < 60e9
    return {"own": own} | {span.name: span for span in spans}


def test_a_collector_receives_traces_over_http_and_grpc(tmp_path: Path) -> None:
    grpc_port = free_port()
    settings = [
        f"server.grpc_port={grpc_port}",
        'server.drain="50ms"',
        'pool.executor="thread"',
        'batching.mode="fixed"',
        'batching.max_queue_delay="100ms"',
    ]
    with collecting() as collector:
        settings.append(f'observe.traces.endpoint="{collector.url}"')
        with Served(tmp_path, FEATURES, settings) as served:
            with ThreadPoolExecutor(2) as threads:
                sent = {"traceparent": parent(0xA)}, {"traceparent": parent(0xB)}
                found = list(threads.map(lambda headers: served.request("POST", INFER, GOOD, headers), sent))
            assert [headers["traceparent"] for _, headers, _ in found] == [parent(0xA), parent(0xB)]
            assert served.request("POST", "/predict/m", {"entities": [5]}, {"traceparent": parent(0xC)})[0] == 200
            with grpc.insecure_channel(f"{HOST}:{grpc_port}") as channel:
                metadata = (("traceparent", parent(0xD)), ("tracestate", "a=1"))
                _, call = unary(channel).with_call(message().SerializeToString(), metadata=metadata)
            assert dict(call.trailing_metadata())["traceparent"] == parent(0xD)
            served.signal()  # what waits is exported before the end
            served.wait()
        for trace_id in (0xA, 0xB):
            batched = check(collector, trace_id)["batch"]
            assert attributes(batched)["tailcut.batch.requests"] == 2
        (batch,) = collector.named("batch m")
        links = {attributes(link)["tailcut.link"]: link for link in batched.links}
        assert (links["batch"].trace_id, links["batch"].span_id) == (batch.trace_id, batch.span_id)
        assert int.from_bytes(links["neighbour"].trace_id, "big") == 0xA
        featured = check(collector, 0xC)
        assert attributes(featured["feature values"])["tailcut.feature.result"] == "miss"
        called = check(collector, 0xD)["own"]
        assert (attributes(called)["rpc.method"], called.trace_state) == ("ModelInfer", "a=1")
        assert attributes(collector.resources[0].resource)["service.name"] == "m"


@pytest.mark.parametrize("fault", ["absent", "slow", "500"])
def test_a_collector_that_fails_holds_nothing_up(tmp_path: Path, fault: str) -> None:
    with collecting() as collector:
        url = collector.url
        if fault == "absent":
            url = f"http://{HOST}:{free_port()}"
        elif fault == "slow":
            collector.hold.clear()
        else:
            collector.status = 500
        settings = [f'observe.traces.endpoint="{url}"', "observe.traces.queue=16", 'server.drain="100ms"']
        with Served(tmp_path, settings=settings) as served:
            began_s = time.monotonic()
            for number in range(120):
                assert served.request("POST", INFER, GOOD, {"traceparent": parent(number + 1)})[0] == 200
            assert time.monotonic() - began_s < 10
            served.wait_until(
                lambda: (
                    total(served, "tailcut_traces_dropped_total") and total(served, "tailcut_trace_export_errors_total")
                )
            )
            assert len(re.findall("traces cannot be exported", served.log)) == 1
            if fault == "500":
                collector.status = 200
                assert served.request("POST", INFER, GOOD, {"traceparent": parent(0xF)})[0] == 200
                served.wait_until(lambda: "traces are exported" in served.log)
                assert collector.spans
            began_s = time.monotonic()
            served.signal()
            assert served.wait() == 0
            assert time.monotonic() - began_s < 8


def total(served: Served, name: str) -> float:
    """A metric, summed over its labels."""
    return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", served.metrics(), re.MULTILINE)))


def test_a_collector_behind_tls_is_verified_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = make_certificate(tmp_path)
    with collecting() as collector:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        context.load_verify_locations(cert)
        context.verify_mode = ssl.CERT_REQUIRED
        collector.socket = context.wrap_socket(collector.socket, server_side=True)
        url = collector.url.replace("http://", "https://")

        def sent() -> str:
            sender = Collector(ExportSettings(f"{url}/v1/traces", {}, is_asked_for=True), "m")
            lost, why = sender.send([[]])
            sender.close()
            return why if lost else ""

        assert "CERTIFICATE_VERIFY_FAILED" in sent()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(cert))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
        assert "Error: " in sent(), "the collector asks for a certificate"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(cert))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", str(key))
        assert sent() == ""
