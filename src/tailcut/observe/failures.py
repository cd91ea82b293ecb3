"""Writes failures to the log without flooding it: while a source is down, every request fails, and in the same way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

log = logging.getLogger("tailcut.server")

_INTERVAL_NS = 5_000_000_000
_MOST_KINDS = 64
"""Kinds that are kept apart: so many tracebacks are written at once."""


_Key = tuple[str, str]
"""Model and kind."""


class FailureLog:
    """The first failure of a kind in full, then every few seconds how many more there were. Owned by the event loop.

    Where there are more kinds than it keeps apart, further ones count as one for each first word.
    """

    def __init__(self, interval_ns: int = _INTERVAL_NS, new_id: Callable[[], str] = lambda: token_hex(4)) -> None:
        self._interval_ns = interval_ns
        self._new_id = new_id
        self._kinds: dict[_Key, _Kind] = {}

    def failed(
        self, kind: str, text: str, cause: BaseException | None, now_ns: int, request_id: str = "", model: str = ""
    ) -> str:
        """Note one failure.

        Args:
            kind: what counts as the same failure: an error's code or an exception's class, and after a space what
                tells it from others with that.
            cause: its traceback goes to the log with the first failure.
            request_id: as the client named the request; empty where it did not.
            model: whose failure it is; each model's are counted apart.

        Returns:
            the incident's id, under which the log has it: that of the first failure of this kind written in full.
        """
        code = kind.partition(" ")[0]
        key = model, kind
        if key not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            key = model, code
        known = self._kinds.get(key)
        if known is not None and (known.more or now_ns - known.written_ns < self._interval_ns):
            known.more += 1
            known.text = text
            known.request_id = request_id
            if now_ns - known.written_ns >= self._interval_ns:
                self._write_count(key, known, now_ns)
            return known.incident
        incident = self._new_id()
        self._kinds[key] = _Kind(now_ns, incident)
        extra = {"incident": incident, "code": code, "request_id": request_id, "model": model}
        log.error("[%s] %s", incident, text, exc_info=cause, extra=extra)
        return incident

    def flush(self, now_ns: int) -> None:
        """Write the counts that are due; forget the kinds that have been quiet for an interval."""
        for key, known in list(self._kinds.items()):
            if now_ns - known.written_ns < self._interval_ns:
                continue
            if known.more:
                self._write_count(key, known, now_ns)
            else:
                del self._kinds[key]

    def _write_count(self, key: _Key, known: _Kind, now_ns: int) -> None:
        model, kind = key
        seconds = (now_ns - known.written_ns) / 1e9
        code = kind.partition(" ")[0]
        log.error(
            "[%s] %s: %d more in %.0f s, the latest: %s",
            known.incident,
            kind,
            known.more,
            seconds,
            known.text,
            extra={"incident": known.incident, "code": code, "request_id": known.request_id, "model": model},
        )
        known.more = 0
        known.written_ns = now_ns


class NewErrors:
    """Tells errors that were not met before, by class and text: what fails every minute is logged once."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def has(self, error: BaseException) -> bool:
        """Note an error; return whether it is new. Once as many as are kept apart were met, no further one is."""
        said = f"{type(error).__name__}: {error}"
        if said in self._met or len(self._met) >= _MOST_KINDS:
            return False
        self._met.add(said)
        return True


class ModelFailures:
    """The part of a log of failures that is of one model."""

    def __init__(self, log: FailureLog, model: str) -> None:
        self._log = log
        self._model = model

    def failed(self, kind: str, text: str, cause: BaseException | None, now_ns: int, request_id: str = "") -> str:
        """Note one failure; see ``FailureLog.failed``."""
        return self._log.failed(kind, text, cause, now_ns, request_id, self._model)


@dataclass(slots=True)
class _Kind:
    written_ns: int
    incident: str
    more: int = 0
    text: str = ""
    request_id: str = ""
