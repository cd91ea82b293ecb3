"""A request log as traffic: the bodies that were asked, each for its own route, and the times at which they came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.client.tensors import encode
from tailcut.errors import LoadTestError
from tailcut.observe.request_log import LoggedTensor, Record, is_request_log, read_log

_GENERATES = {"generate", "generate_stream"}
_OVER_HTTP = {"infer", "predict", *_GENERATES}
_TIMEOUT = "X-Tailcut-Timeout-Ms"


class ReplayBody(NamedTuple):
    """What one request sends.

    Attributes:
        path: empty: the URL's own.
        headers: lines of the request's head, besides those of all requests.
    """

    path: str
    content: bytes
    headers: str = ""


class Replay(NamedTuple):
    """A request log as traffic.

    Attributes:
        records: in the order of arrival.
        notes: what was left out, a line each.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...]

    def differences(self) -> Iterator[str]:
        """Yield in which way requests that are sent again are not as they were."""
        shares = sorted({record.probability for record in self.records})
        if shares[0] < 1:
            named = " to ".join(f"{share:.4g}" for share in dict.fromkeys((shares[0], shares[-1])))
            yield (
                f"the log is a sample (share {named}): the times between requests are shortened by it, so that the "
                "rate is that of all requests for a shorter time; repeats, bursts longer than that are the sample's"
            )
        if other := sum(record.route not in _OVER_HTTP for record in self.records):
            yield f"{other} requests came over gRPC or in process: they are sent over HTTP"

    def bodies(self) -> Iterator[ReplayBody]:
        """Yield what each request sends."""
        return (body_of(record) for record in self.records)

    def times_s(self) -> npt.NDArray[np.float64]:
        """Return when to send each request, seconds from the first.

        The time between two requests is multiplied by the probability with which the second was sampled, so that the
        rate is that of all requests. Of independent arrivals this is a draw from the same process: a Poisson process
        that is thinned and sped up by the same factor is one again (Kingman, "Poisson Processes", 1993, 2.3 and 5.1).
        """
        at_s = np.array([record.time_ns - self.records[0].time_ns for record in self.records], np.float64) / 1e9
        sampled = np.array([record.probability for record in self.records])
        times: npt.NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * sampled[1:])])
        return times

    def rows(self) -> list[int]:
        """Return the rows of each request."""
        return [max(record.count, 1) for record in self.records]


@lru_cache(maxsize=2)
def read_replay(source: str) -> Replay:
    """Read the requests of a log that can be sent again: those that say what was asked.

    Raises:
        LoadTestError: it cannot be read, no record says what was asked, or fields of the inputs were hashed or dropped.
    """
    records, notes = read_arrivals(source)
    asked = [record for record in records if record.is_asked]
    if not asked:
        raise LoadTestError(
            f"none of the {len(records)} records of {source} says what was asked",
            hint="their bodies could not be read, or were never: log other traffic",
        )
    hidden = sorted({name for record in asked for name in (*record.hashed, *record.dropped)})
    if hidden:
        raise LoadTestError(
            f"the request log {source} cannot be sent again: {', '.join(hidden)} were hashed or dropped",
            hint="log without request_log.hash and drop for these fields, where that is allowed",
        )
    if unread := len(records) - len(asked):
        unread_note = f"{unread} of {len(records)} requests are left out: their bodies were not read, or are malformed"
        notes = (*notes, unread_note)
    return Replay(tuple(asked), notes)


@lru_cache(maxsize=2)
def read_arrivals(source: str) -> Replay:
    """Read all requests of a log, for when they came; once, however often it is asked for: a server may go on writing.

    Raises:
        LoadTestError: it cannot be read.
    """
    notes: list[str] = []
    records = read_log(Path(source), notes.append)
    return Replay(tuple(records), tuple(notes))


def is_replay(source: str) -> bool:
    """Tell whether payloads or arrivals are a request log."""
    return bool(source) and Path(source).exists() and is_request_log(Path(source))


def check_replay(source: str) -> None:
    """Refuse what is given to --replay and is no request log.

    Raises:
        LoadTestError: it is none.
    """
    if not is_replay(source):
        raise LoadTestError(
            f"--replay: {source} is no request log", hint="name the folder of request_log.path, or a file in it"
        )


def body_of(record: Record) -> ReplayBody:
    """Return what a request sends: on its own route, or on the one over HTTP that is like it."""
    model = quote(record.model, safe="")
    timeout = f"{_TIMEOUT}: {max(record.asked_ms, 0.001):.3f}\r\n" if record.asked_ms else ""
    if record.inputs is None:
        what, values = record.values()
        content = json.dumps({what: values}, separators=(",", ":"), default=bytes.decode).encode()
        return ReplayBody(f"/predict/{model}", content, timeout)
    if record.route in _GENERATES:
        named = {each.name: data if len(data := _data(each)) != 1 else data[0] for each in record.inputs}
        return ReplayBody(f"/v2/models/{model}/{record.route}", msgspec.json.encode(named), timeout)
    path = f"/v2/models/{model}/infer"
    if record.encoding == "json":
        return ReplayBody(path, _infer(record), timeout)
    headers, content = encode(record.arrays(), record.wanted or None)
    if record.priority:
        headers, content = _with_priority(headers, content, record.priority)
    return ReplayBody(path, content, timeout + "".join(f"{name}: {value}\r\n" for name, value in headers.items()))


def goes_to(path: str, target: str) -> bool:
    """Tell whether a logged request goes to its own path: the URL has none, or one of the same model.

    Another path, that of a pilot for example, takes all requests.

    Args:
        path: of the request.
        target: the URL's.
    """
    model = path.split("/")[2 if path.startswith("/predict/") else 3]
    return target in {"/", f"/predict/{model}"} or target.startswith(f"/v2/models/{model}/")


def _infer(record: Record) -> bytes:
    tensors = [
        {"name": each.name, "shape": each.shape, "datatype": each.datatype, "data": _data(each)}
        for each in record.inputs or ()
    ]
    request: dict[str, Any] = {"inputs": tensors}
    if record.wanted:
        request["outputs"] = [{"name": name} for name in record.wanted]
    if record.priority:
        request["parameters"] = {"priority": record.priority}
    return msgspec.json.encode(request)


def _data(tensor: LoggedTensor) -> list[Any]:
    """Return values as JSON with the words NaN and Infinity, which the server reads."""
    if tensor.datatype.startswith("FP"):
        return [msgspec.Raw(each.encode()) if isinstance(each, str) else each for each in tensor.data or ()]
    return tensor.data or []


def _with_priority(headers: dict[str, str], content: bytes, priority: int) -> tuple[dict[str, str], bytes]:
    name = next(name for name in headers if name.startswith("inference-header"))
    at = int(headers[name])
    request = msgspec.json.decode(content[:at])
    request["parameters"]["priority"] = priority
    header = msgspec.json.encode(request)
    return {**headers, name: str(len(header))}, header + content[at:]
