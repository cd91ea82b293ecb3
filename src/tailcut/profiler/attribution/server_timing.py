"""Requests as seen from outside: the client's clock, and what the server says of its own time in Server-Timing.

The header tells how long its parts took, never when. They are laid one after the other within the server's time, and
that in the middle between sending and the whole reply, which says nothing of their real order and keeps every sum.

Source: https://www.w3.org/TR/server-timing/.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailcut.profiler.records import RecordedRequest, RecordedSpan, Stage

TOTALS = ("total", "request", "server", "app", "application", "all")
"""Names of the metric that covers all others, the likeliest first."""

TAILCUT: Mapping[str, tuple[Stage, str]] = {
    "receive": (Stage.RECEIVE, ""),
    "validate": (Stage.DECODE, "validation"),
    "admit": (Stage.FRAMEWORK, "admission"),
    "entity_cache": (Stage.CACHE, "entity_cache"),
    "features": (Stage.SQL, "feature groups"),
    "preprocess": (Stage.CODE, "preprocess"),
    "tensor_cache": (Stage.CACHE, "tensor_cache"),
    "queue": (Stage.WAIT, "an executor"),
    "infer": (Stage.MODEL, "model"),
    "postprocess": (Stage.CODE, "postprocess"),
    "encode": (Stage.ENCODE, ""),
}
"""Stages of tailcut's own Server-Timing; labels where the stage's name does not say it."""

_WORDS: Mapping[Stage, str] = {
    Stage.SQL: "db database sql query queries postgres postgresql pg mysql sqlite mongo",
    Stage.CACHE: "cache redis memcached memcache cdn",
    Stage.MODEL: "model infer inference predict prediction forward compute gpu",
    Stage.HTTP: "http api upstream fetch backend origin",
    Stage.WAIT: "queue wait waiting pool",
    Stage.RECEIVE: "receive read body",
    Stage.DECODE: "decode parse parsing validate validation deserialize",
    Stage.ENCODE: "encode serialize serialization render rendering view",
}
_STAGES = {word: stage for stage, words in _WORDS.items() for word in words.split()}


class Timed:
    """How a server's metric names are read.

    Args:
        names: of the metrics that replies have.
        known: (stage, label) by name; others are read by the words in them, and are the server's code where no word is
            known.
    """

    def __init__(self, names: tuple[str, ...], known: Mapping[str, tuple[Stage, str]] | None = None) -> None:
        known = known or {}
        low = {name.lower(): name for name in names}
        self.total = next((low[one] for one in TOTALS if one in low), "")
        self.parts = {name: known.get(name) or (_stage_of(name), name) for name in names if name != self.total}

    def request(
        self,
        number: int,
        times_ns: tuple[int, int, int],
        status: int,
        took_ms: Mapping[str, float],
        *,
        round_trip_ns: int = 0,
    ) -> RecordedRequest:
        """Make one request's record.

        Args:
            number: its place in the order of intended times.
            times_ns: intended, sent, done; -1: never happened.
            status: of HTTP, or a failure's.
            took_ms: by the names of the metrics; those that its reply did not have are absent.
            round_trip_ns: of a bare TCP connection, counted as network where the server tells no total; 0: not known.
        """
        intended, sent, done = times_ns
        if sent < 0 or done < 0:
            return RecordedRequest(number=number, intended_ns=intended, sent_ns=sent, done_ns=done, status=status)
        parts = {name: round(took_ms[name] * 1e6) for name in self.parts if took_ms.get(name, 0.0) > 0.0}
        wall = done - sent
        total = took_ms.get(self.total)
        if total is None:
            spans = _on_the_way(sent, done, min(round_trip_ns, wall - min(sum(parts.values()), wall)))
            low, high = (spans[0].end_ns, spans[1].start_ns) if spans else (sent, done)
            entered = left = -1
        else:
            spans = []
            window = min(round(total * 1e6), wall)
            low = entered = sent + (wall - window) // 2
            high = left = low + window
        spans += self._laid(parts, low, high)
        return RecordedRequest(
            number=number,
            intended_ns=intended,
            sent_ns=sent,
            done_ns=done,
            entered_ns=entered,
            left_ns=left,
            status=status,
            spans=tuple(spans),
        )

    def _laid(self, parts: Mapping[str, int], low: int, high: int) -> list[RecordedSpan]:
        """Lay parts one after the other; those that add up to more than there is ran side by side, and shrink."""
        room, wanted = high - low, sum(parts.values())
        spans, at, laid = [], low, 0
        for name, took in parts.items():
            laid += took
            end = low + (laid if wanted <= room else laid * room // wanted)
            stage, label = self.parts[name]
            spans.append(RecordedSpan(stage=stage, label=label, start_ns=at, end_ns=end))
            at = end
        return spans


def _on_the_way(sent: int, done: int, round_trip: int) -> list[RecordedSpan]:
    if round_trip <= 0:
        return []
    label, there = "a TCP round trip", round_trip // 2
    return [
        RecordedSpan(stage=Stage.NETWORK, label=label, start_ns=sent, end_ns=sent + there),
        RecordedSpan(stage=Stage.NETWORK, label=label, start_ns=done - (round_trip - there), end_ns=done),
    ]


def _stage_of(name: str) -> Stage:
    words = "".join(char if char.isalnum() else " " for char in name.lower()).split()
    return next((_STAGES[word] for word in words if word in _STAGES), Stage.CODE)
