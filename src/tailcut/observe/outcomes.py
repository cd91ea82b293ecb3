"""How requests end, for metrics: "ok" or an error's code, and the class of its status."""

from __future__ import annotations

from tailcut.common.slo import CLIENT_STATUSES
from tailcut.errors import TailcutError, Unauthorized

OUTCOMES = ("ok", "4xx", "5xx")
"""Classes of how a request ends, by its HTTP status; over gRPC by that of the same error."""

SHED_CODES = ("shed", "queue_timeout")
"""Codes of requests that were refused or dropped because there was too little capacity."""


def _codes(kind: type[TailcutError]) -> dict[str, int]:
    found = {} if kind.fault == "operator" else {kind.code: kind.status}
    for each in kind.__subclasses__():
        if each.__module__ == TailcutError.__module__:  # not one of a user's code, which inherits a code
            found = _codes(each) | found
    return found


CODES: dict[str, int] = _codes(TailcutError)
"""Every code that a request can end with, and its HTTP status."""


CLIENT_CODES = frozenset(code for code, status in CODES.items() if status in CLIENT_STATUSES) | {Unauthorized.code}
"""Codes of requests that were themselves wrong, so that no objective is about them; see ``common.slo``."""


def outcome_of(code: str) -> str:
    """Return the class of a code; "ok" of "ok", and "5xx" of a code that is not known."""
    if code == "ok":
        return "ok"
    return "4xx" if CODES.get(code, 500) < 500 else "5xx"
