"""Spans as OTLP/HTTP sends them: protobuf, gzipped, in one POST.

Source: OTLP specification 1.x (https://opentelemetry.io/docs/specs/otlp/), OTLP/HTTP with binary protobuf.
"""

from __future__ import annotations

import gzip
import http.client
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tailcut.observe.traces import attributes as names
from tailcut.observe.traces.exporter import Sent
from tailcut.observe.traces.settings import ExportSettings
from tailcut.observe.traces.spans import Span, Value
from tailcut.version import version

_RETRYABLE = frozenset({429, 502, 503, 504})
_MOST_ANSWER_BYTES = 64 * 1024
_LONGEST_RETRY_S = 300.0
_KINDS = {"internal": ProtoSpan.SPAN_KIND_INTERNAL, "server": ProtoSpan.SPAN_KIND_SERVER}
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""Bits of a span's flags, above those of the W3C."""


class Collector:
    """Sends spans to a collector. Used by one thread at a time.

    Args:
        resource: what describes this process.
    """

    def __init__(self, settings: ExportSettings, resource: Mapping[str, Value]) -> None:
        parts = urlsplit(settings.url)
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self.where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._timeout_s = settings.timeout_s
        self._resource = [_pair(name, value) for name, value in resource.items()]
        self._headers = {
            "user-agent": f"tailcut/{version()}",
            **settings.headers,
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
        }
        self._connection: http.client.HTTPConnection | None = None

    def encoded(self, traces: Sequence[Sequence[Span]]) -> bytes:
        """Return the body of a request with the spans of traces."""
        request = ExportTraceServiceRequest()
        of_resource = request.resource_spans.add(schema_url=names.SCHEMA_URL)
        of_resource.resource.attributes.extend(self._resource)
        of_scope = of_resource.scope_spans.add(schema_url=names.SCHEMA_URL)
        of_scope.scope.name, of_scope.scope.version = names.SCOPE, version()
        for trace in traces:
            of_scope.spans.extend([_proto(span) for span in trace])
            time.sleep(0)  # gives the interpreter lock up: requests go first
        return gzip.compress(request.SerializeToString(), 5)

    def send(self, body: bytes, timeout_s: float) -> Sent:
        """Send a body, once; never raises for what the network or the collector does.

        Args:
            timeout_s: bounds each wait for the collector, beside the settings' own.
        """
        timeout_s = min(timeout_s, self._timeout_s)
        is_kept = self._connection is not None
        try:
            try:
                return self._posted(body, timeout_s)
            except (http.client.RemoteDisconnected, ConnectionError):
                if not is_kept:
                    raise
                self.close()  # the collector had closed the connection that was kept
                return self._posted(body, timeout_s)
        except TimeoutError:
            self.close()
            return Sent("retry", f"no answer within {timeout_s:g} s")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Sent("retry", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _posted(self, body: bytes, timeout_s: float) -> Sent:
        connection = self._connection
        if connection is None:
            if self._is_tls:
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            self._connection = connection
        elif connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request("POST", self._target, body, self._headers)
        answer = connection.getresponse()
        said = answer.read(_MOST_ANSWER_BYTES)
        if not answer.isclosed() or answer.will_close:
            self.close()
        if 200 <= answer.status < 300:
            return Sent("sent", _partly(said))
        if answer.status in _RETRYABLE:
            return Sent("retry", f"HTTP {answer.status}", _retry_after_s(answer.getheader("retry-after")))
        if answer.status >= 500:
            return Sent("retry", f"HTTP {answer.status}")
        return Sent("refused", f"HTTP {answer.status}")


def _partly(said: bytes) -> str:
    """Return what a collector says of spans that it did not take; empty where it took all."""
    try:
        partial = ExportTraceServiceResponse.FromString(said).partial_success
    except DecodeError:
        return ""
    if not partial.rejected_spans:
        return ""
    return f"it rejected {partial.rejected_spans} spans: {partial.error_message[:200]}"


def _retry_after_s(text: str | None) -> float:
    """Return the seconds of a Retry-After header, at most five minutes; 0 where there is none that can be read."""
    if text is None:
        return 0.0
    try:
        wait_s = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return 0.0
    return min(max(wait_s, 0.0), _LONGEST_RETRY_S)


def _proto(span: Span) -> ProtoSpan:
    found = ProtoSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=span.state,
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=[_pair(name, value) for name, value in span.attributes.items()],
        flags=(span.flags & 0xFF) | _HAS_IS_REMOTE | (_IS_REMOTE if span.is_remote else 0),
    )
    for link in span.links:
        found.links.add(
            trace_id=bytes.fromhex(link.trace_id),
            span_id=bytes.fromhex(link.span_id),
            attributes=[_pair(names.LINK, link.what)],
        )
    if span.error:
        found.status.code, found.status.message = Status.STATUS_CODE_ERROR, span.error
    return found


def _pair(name: str, value: Value) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=value))
