"""Requests as bytes, made before the run so that the run only sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import msgspec

from tailcut.common.json_values import UNREADABLE, decode, encode
from tailcut.errors import LoadTestError
from tailcut.load.plan import LoadPlan, TargetUrl
from tailcut.load.replay import ReplayBody, goes_to, is_replay, read_replay

_TIMED = {"time", "payload"}
"""Keys of a line that also says when its payload came, for `tailcut profile`; the payload alone is sent."""


def build_requests(plan: LoadPlan, target: TargetUrl, count: int) -> list[bytes]:
    """Make the ``count`` requests of a run. Equal requests share one object, so a small set costs little memory.

    Raises:
        LoadTestError: the payloads cannot be read, or yield something that is no body.
    """
    head_end = "".join(f"{name}: {value}\r\n" for name, value in plan.headers)
    typed = any(name.lower() == "content-type" for name, _ in plan.headers) or not plan.payloads
    made: dict[ReplayBody, bytes] = {}
    requests: list[bytes] = []
    logged = is_replay(plan.payloads)
    for body in islice(bodies(plan), plan.payload_offset + count):
        request = made.get(body)
        if request is None:
            path, content, more = body
            if logged and not goes_to(path, target.path):
                path = target.path
            if not typed and "content-type:" not in more:
                more += "Content-Type: application/json\r\n"
            length = f"Content-Length: {len(content)}\r\n" if content or plan.http_method in {"POST", "PUT"} else ""
            head = f"{plan.http_method} {path or target.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
            request = made[body] = f"{head}{length}{head_end}{more}\r\n".encode("latin-1") + content
        requests.append(request)
    if len(requests) < plan.payload_offset + count:
        start = plan.payload_offset % len(requests)
        chosen = list(islice(cycle(requests), start, start + count))
    else:
        chosen = requests[plan.payload_offset :]
    return _numbered(chosen, plan.numbered) if plan.numbered else chosen


def check_payloads(plan: LoadPlan) -> None:
    """Refuse payloads that cannot be read, and a file that holds something else, before anything is started.

    Raises:
        LoadTestError: as ``build_requests``.
    """
    found = bodies(plan)
    if plan.payloads and not _is_made(plan.payloads):
        for _ in found:
            pass
    next(found, None)


def _numbered(requests: list[bytes], name: str) -> list[bytes]:
    # After the request line: the first line's end is the only one that is sure to be there.
    made = []
    for number, request in enumerate(requests):
        line, end, rest = request.partition(b"\r\n")
        made.append(b"%b%b%b: %d\r\n%b" % (line, end, name.encode("latin-1"), number, rest))
    return made


def bodies(plan: LoadPlan) -> Iterator[ReplayBody]:
    """Yield the bodies of a plan's payloads, in order.

    Raises:
        LoadTestError: the payloads cannot be read, are empty, or yield something that is no body.
    """
    if not plan.payloads:
        return cycle([ReplayBody("", b"")])
    if is_replay(plan.payloads):
        return read_replay(plan.payloads).bodies()
    if _is_made(plan.payloads):
        source: Iterable[object] = _call(plan.payloads, plan.seed if plan.payload_seed is None else plan.payload_seed)
    else:
        source = _lines(Path(plan.payloads))
    first = next(found := (_as_body(item, plan.payloads) for item in source), None)
    if first is None:
        raise LoadTestError(f"the payloads {plan.payloads!r} are empty", hint="give at least one body")
    return chain([first], found)


def _is_made(payloads: str) -> bool:
    return ":" in payloads and not Path(payloads).exists()


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists() and not path.is_file():
        raise LoadTestError(
            f"the payloads {path} cannot be read twice, but they are read once to check and once to send them",
            hint="write them to a .jsonl file, or name module:callable",
        )
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise LoadTestError(
            f"cannot read the payloads {path}: {error.strerror}", hint="give a .jsonl file or module:callable"
        ) from None
    any_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = decode(any_json, line)
        except UNREADABLE as error:
            raise LoadTestError(
                f"line {number} of {path} is not JSON: {error}", hint="write one body per line"
            ) from None
        is_timed = isinstance(found, dict) and found.keys() == _TIMED
        yield encode(found["payload"]) if is_timed else line.strip()


def _call(reference: str, seed: int) -> Iterable[object]:
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise LoadTestError(
            f"cannot import the payloads {reference!r}: {error}",
            hint="give 'package.module:callable' on the import path",
        ) from error
    made: Iterable[object] = function(seed)
    return made


def _as_body(item: object, source: str) -> ReplayBody:
    path = ""
    if isinstance(item, tuple) and len(item) == 2:
        path, item = str(item[0]), item[1]
    if isinstance(item, bytes):
        return ReplayBody(path, item)
    if isinstance(item, str):
        return ReplayBody(path, item.encode())
    if isinstance(item, dict | list):
        return ReplayBody(path, encode(item))
    raise LoadTestError(
        f"the payloads {source!r} yielded a {type(item).__name__}",
        hint="yield bytes, text, a JSON object or (path, body)",
    )
