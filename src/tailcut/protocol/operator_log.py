"""Which errors go to the log, and how: what is kept from the client is told to the operator."""

from __future__ import annotations

import re

from tailcut.common.user_frames import place
from tailcut.errors import (
    DeadlineExceeded,
    FeatureError,
    FeatureUnavailable,
    HookError,
    InferenceError,
    NotReady,
    TailcutError,
)
from tailcut.observe.failures import FailureLog, ModelFailures
from tailcut.pipeline.request_context import RequestContext

_MOST_CAUSES = 8
_KIND = "_tailcut_kind"
"""Where an error keeps its own: one of a batch belongs to several requests, and has no traceback after the first."""
_NUMBER = re.compile(r"(?<![\w'\"])\d[\d.,]*")
"""A figure; not one that belongs to a name, as that of an input does."""


def told(failures: ModelFailures, context: RequestContext, error: Exception, now_ns: int) -> tuple[TailcutError, str]:
    """Log an error that a request ended with, where it is the operator's business.

    Returns:
        what the client hears of it, its tracebacks gone, and the incident under which the log has it; empty where it is
        not logged.
    """
    if not isinstance(error, TailcutError):
        return unforeseen(failures, f"in {context.route}", error, now_ns, context.request_id)
    is_ours = error.status >= 500 and not isinstance(error, DeadlineExceeded | NotReady)
    incident = ""
    if is_ours or error.detail:
        kind = vars(error).get(_KIND) or _kind(error)
        vars(error)[_KIND] = kind
        text = f"{context.route} failed: {error.explained}"
        incident = failures.failed(kind, text, _bug(error), now_ns, context.request_id)
    _forget_way(error)
    return error, incident


def unforeseen(
    failures: FailureLog | ModelFailures, where: str, error: Exception, now_ns: int, request_id: str = ""
) -> tuple[TailcutError, str]:
    """Log an exception that should not be; return what the client hears of it, and the incident."""
    kind = type(error).__name__
    incident = failures.failed(kind, f"unexpected error {where}", error, now_ns, request_id)
    return TailcutError(f"unexpected {kind}", hint="a bug in tailcut: see the log and report it"), incident


def _forget_way(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes.

    Their frames know the request, its future and so the error itself. Only the garbage collector would free them, and
    with them the body, the tensors and the connection; in overload that is what there is most of.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _kind(error: TailcutError) -> str:
    """What counts as the same failure: of the user's code the line, or what is wrong with its answer."""
    group = error.group if isinstance(error, FeatureError | FeatureUnavailable) else ""
    if isinstance(error, FeatureUnavailable) and error.source:
        group = error.source
    cause, where = error.__cause__, ""
    if cause is not None and not isinstance(cause, TailcutError):
        where = place(cause)
    if not where and isinstance(error, HookError | InferenceError):
        where = f"({_NUMBER.sub('N', error.message)})"
    return " ".join(filter(None, (error.code, group, type(cause).__name__ if cause is not None else "", where)))


def _bug(error: TailcutError) -> BaseException | None:
    """The exception whose traceback helps: one that code of the user's raised, and not by way of refusing a request."""
    cause = error.__cause__
    if cause is None or error.status < 500 or isinstance(cause, TailcutError) or not place(cause):
        return None
    return cause
