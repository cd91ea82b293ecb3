"""Payload logs: files of JSON lines, with or without times, and what a load is made from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tailcut.errors import ProfileError
from tailcut.load import LoadPlan
from tailcut.load.payloads import bodies
from tailcut.load.replay import is_replay, read_replay
from tailcut.profiler.payloads.diversity import Diversity, read_diversity, sample_for

_TIMED = frozenset({"time", "payload"})


class PayloadLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log as read.

    Attributes:
        at_s: when each payload came, from the first.
        bodies: the payloads; of requests to several paths {"path": ..., "body": ...}: the path says what is asked, too.
        timed: the times are the log's; else they are laid out at a rate.
    """

    at_s: tuple[float, ...]
    bodies: tuple[bytes, ...]
    timed: bool

    def diversity(self) -> Diversity:
        """Say how much of it repeats."""
        pairs = zip(self.at_s, self.bodies, strict=True)
        return read_diversity(pairs, timed=self.timed, sample=sample_for(len(self.bodies)))


def read_payload_log(path: Path, *, rate: float) -> PayloadLog:
    """Read a file with one payload per line, or one ``{"time": ..., "payload": ...}`` per line, or a request log.

    Args:
        path: of the .jsonl file.
        rate: requests per second that the payloads are laid out at where they have no times.

    Times are seconds since any moment, or text as of ISO 8601; they may be a little out of order.

    Raises:
        ProfileError: the file cannot be read, a line is not JSON, or only some lines have times.
    """
    if is_replay(str(path)):
        return _replayed(path)
    found: list[tuple[float, bytes]] = []
    timed: bool | None = None
    for number, line in _lines(path):
        at_s, body = _line(path, number, line)
        if timed is not None and timed != (at_s is not None):
            has = "a time, those before it have none" if at_s is not None else "no time, those before it have one"
            raise ProfileError(
                f"line {number} of {path} has {has}",
                hint='write {"time": seconds, "payload": ...} on every line, or payloads only',
            )
        timed = at_s is not None
        found.append((at_s if at_s is not None else len(found) / rate, body))
    if not found:
        raise ProfileError(f"{path} holds no payloads", hint="write one JSON payload per line")
    found.sort(key=lambda pair: pair[0])
    return PayloadLog(
        at_s=tuple(at_s - found[0][0] for at_s, _ in found), bodies=tuple(body for _, body in found), timed=bool(timed)
    )


def _replayed(path: Path) -> PayloadLog:
    """Read a request log; of a sample the times are those of the sample, as between repeats more requests came."""
    replay = read_replay(str(path))
    at_s = [(record.time_ns - replay.records[0].time_ns) / 1e9 for record in replay.records]
    return PayloadLog(at_s=tuple(at_s), bodies=tuple(body.content for body in replay.bodies()), timed=True)


def sent_payloads(payloads: str, *, rate: float, count: int, seed: int = 0) -> PayloadLog:
    """Make the first payloads that a load sends, in the order of its requests' numbers, each once.

    Args:
        payloads: a .jsonl file or ``module:callable``, as of ``LoadPlan``.
        rate: requests per second.
        count: how many at most. The load begins again where there are fewer: those repeats are of its making.
        seed: of the payloads.

    Raises:
        LoadTestError: the payloads cannot be read.
    """
    plan = LoadPlan(url="", payloads=payloads, seed=seed)
    sent = [(body.path or "/", body.content) for body in islice(bodies(plan), count)]
    several = len({path for path, _ in sent}) > 1
    return PayloadLog(
        at_s=tuple(number / rate for number in range(len(sent))),
        bodies=tuple(_with_path(path, body) if several else body for path, body in sent),
        timed=False,
    )


def _with_path(path: str, body: bytes) -> bytes:
    """A payload that differs where path or body do. One that is no JSON stays none: it is compared as a whole."""
    if not body:
        return msgspec.json.encode({"path": path})
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return path.encode() + b"\n" + body
    return msgspec.json.encode({"path": path, "body": msgspec.Raw(body)})


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise ProfileError(
            f"cannot read the payloads {path}: {error.strerror}", hint="give a file of JSON lines"
        ) from None


def _line(path: Path, number: int, line: bytes) -> tuple[float | None, bytes]:
    try:
        decoded: Any = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ProfileError(f"line {number} of {path} is not JSON: {error}", hint="write one payload per line") from None
    if not (isinstance(decoded, dict) and set(decoded) == _TIMED):
        return None, line
    when = decoded["time"]
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when).timestamp()
        except ValueError:
            when = None
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise ProfileError(
            f"line {number} of {path} has the time {decoded['time']!r}",
            hint="write seconds, or text such as 2026-01-31T12:00:00+00:00",
        )
    return float(when), msgspec.json.encode(decoded["payload"])
