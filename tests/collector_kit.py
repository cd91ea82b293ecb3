"""A collector of traces for tests: a real HTTP server that decodes OTLP, and fails on demand."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class TestCollector(ThreadingHTTPServer):
    """Collects spans.

    Attributes:
        status: that it answers with, unless ``status_of`` has another for the number of the request.
        answer_headers: that it answers with, too.
        asked: requests so far.
        hold: while it is not set, requests are not answered.
    """

    __test__ = False
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.status = 200
        self.status_of: dict[int, int] = {}
        self.answer_headers: dict[str, str] = {}
        self.answer = ExportTraceServiceResponse()
        self.asked = 0
        self.headers: dict[str, str] = {}
        self.resources: list[Any] = []
        self.spans: list[Any] = []
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, name: str) -> list[Any]:
        """Spans of a name."""
        return [span for span in self.spans if span.name == name]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that leave are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: TestCollector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        collector = self.server
        raw = self.rfile.read(int(self.headers["content-length"]))
        collector.asked += 1
        assert self.path == "/v1/traces"
        assert self.headers["content-type"] == "application/x-protobuf"
        collector.hold.wait(30)
        status = collector.status_of.get(collector.asked, collector.status)
        if status == 200:
            unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(self.headers["content-encoding"], bytes)
            request = ExportTraceServiceRequest.FromString(unpack(raw))
            collector.headers = {name.lower(): value for name, value in self.headers.items()}
            for resource in request.resource_spans:
                collector.resources.append(resource)
                for scope in resource.scope_spans:
                    collector.spans.extend(scope.spans)
        body = collector.answer.SerializeToString() if status == 200 else b"no"
        self.send_response(status)
        for name, value in collector.answer_headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def collecting(port: int = 0) -> Iterator[TestCollector]:
    """A collector that runs in a thread."""
    with TestCollector(port) as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.hold.set()
            collector.shutdown()
            thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a span, link or resource as plain values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}
