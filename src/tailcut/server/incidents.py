"""Which errors go to the log, and how: what is kept from the client is told to the operator."""

from __future__ import annotations

from tailcut.core.blame import place
from tailcut.errors import DeadlineExceeded, FeatureUnavailable, NotReady, TailcutError
from tailcut.observe.failures import FailureLog


def note(failures: FailureLog, route: str, error: TailcutError, now_ns: int) -> str:
    """Log an error that a request ended with, where it is the operator's business.

    Returns:
        the incident under which the log has it; empty where it is not logged.
    """
    is_ours = error.status >= 500 and not isinstance(error, DeadlineExceeded | NotReady)
    if not is_ours and not error.detail:
        return ""
    return failures.failed(_kind(error), f"{route} failed: {error.explained}", _bug(error), now_ns)


def _kind(error: TailcutError) -> str:
    """What counts as the same failure."""
    group = error.group if isinstance(error, FeatureUnavailable) else ""
    cause = type(error.__cause__).__name__ if error.__cause__ is not None else ""
    return " ".join(filter(None, (error.code, group, cause)))


def _bug(error: TailcutError) -> BaseException | None:
    """The exception whose traceback helps: one that code of the user's raised, and not by way of refusing a request."""
    cause = error.__cause__
    if cause is None or error.status < 500 or isinstance(cause, TailcutError) or not place(cause):
        return None
    return cause
