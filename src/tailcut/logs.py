"""The log of a process of tailcut's own: each record is one line on stderr, as text or as a JSON object.

``configure`` is for the server, its worker and its executors. An application that tailcut is mounted in configures its
own logging; there, tailcut only writes to its loggers, whose names begin with ``tailcut.``.
"""

from __future__ import annotations

import json
import logging
import logging.config
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

request_id: ContextVar[str] = ContextVar("tailcut_request_id", default="")
"""Of the request whose hook runs in this context; a record may also bring its own as an attribute of this name."""

model: ContextVar[str] = ContextVar("tailcut_model", default="")
"""Name of the model that is loaded or looked after in this context; likewise."""

_ATTRIBUTES = ("request_id", "incident", "code")
"""Of a record, written where it has them (``extra=`` of the logging functions)."""

_HINT = "\n\nhint: "
_BREAKS = re.compile(r"\s*[\r\n]+\s*")
_STDERR = 2


class _ModelFormatter(logging.Formatter):
    """What both forms of the log share.

    Args:
        name: of the deployment, or of the host of several: where a record is of no model in particular.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _model_of(self, record: logging.LogRecord) -> str:
        return str(getattr(record, "model", "")) or model.get() or self._name

    def _message(self, record: logging.LogRecord) -> str:
        """Return the message, an error's hint included."""
        return record.getMessage().strip().replace(_HINT, "; hint: ")


class JsonFormatter(_ModelFormatter):
    """One JSON object per record: time, level, logger, message, model, and what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object; what JSON cannot hold is escaped."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            "model": self._model_of(record),
            **_known(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error_type"] = _name(record.exc_info[0])
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class TextFormatter(_ModelFormatter):
    """One line per record, and the traceback behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, model, logger and message; the request's id at the end."""
        # A line break of a user's exception would begin a line without time and level.
        message = _BREAKS.sub(" ", self._message(record))
        line = f"{_time(record)} {record.levelname:<7} {self._model_of(record)} {record.name}: {message}"
        if found := _known(record).get("request_id"):
            line += f" [request {found}]"
        if record.exc_info and record.exc_info[0] is not None:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


class StderrHandler(logging.Handler):
    """Writes each record with one system call, or drops it where stderr takes nothing, on a full disk say.

    Not through ``sys.stderr``: handlers of signals log too, and may run in the middle of a write to it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            line = self.format(record)
        except Exception:  # such as arguments that do not fit the message
            self.handleError(record)
            return
        with suppress(OSError):
            os.write(_STDERR, encoded(line))


def formatter(form: str, model: str) -> logging.Formatter:
    """Return the formatter of a form: "text" or "json"."""
    return JsonFormatter(model) if form == "json" else TextFormatter(model)


def configure(form: str, model: str) -> None:
    """Have all loggers of this process write to stderr, and what Python itself writes there.

    Args:
        form: "text" or "json".
        model: name of the deployment.
    """
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"()": formatter, "form": form, "model": model}},
            "handlers": {"stderr": {"()": StderrHandler, "formatter": "line"}},
            "root": {"level": "INFO", "handlers": ["stderr"]},
        }
    )
    take_over()


def take_over() -> None:
    """Log what Python writes to stderr by itself: warnings, and exceptions that no code catches."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def line_of(formatter: logging.Formatter, logger: str, level: int, message: str) -> bytes:
    """Return a line that no logger writes, such as one of another process."""
    record = logging.LogRecord(logger, level, "", 0, message, (), None)
    return encoded(formatter.format(record))


def encoded(line: str) -> bytes:
    """Return a line with its end in UTF-8; lone surrogates, as file names have them, are escaped as JSON does."""
    return f"{line}\n".encode("utf-8", "backslashreplace")


def _time(record: logging.LogRecord) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _known(record: logging.LogRecord) -> Mapping[str, str]:
    found = {name: str(value) for name in _ATTRIBUTES if (value := getattr(record, name, ""))}
    if not hasattr(record, "request_id") and (current := request_id.get()):
        found["request_id"] = current
    return found


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, at)
    else:
        logging.getLogger("python").critical("uncaught exception: %s", error, exc_info=(kind, error, at))


def _uncaught_in_thread(thrown: threading.ExceptHookArgs) -> None:
    if thrown.exc_type is SystemExit:
        return
    name = thrown.thread.name if thrown.thread is not None else "unknown"
    error = thrown.exc_value or thrown.exc_type()
    logging.getLogger("python").error(
        "uncaught exception in thread %s: %s", name, error, exc_info=(thrown.exc_type, error, thrown.exc_traceback)
    )


def _unraisable(thrown: sys.UnraisableHookArgs) -> None:
    error = thrown.exc_value or thrown.exc_type()
    logging.getLogger("python").error(
        "%s %r: %s",
        thrown.err_msg or "exception ignored in",
        thrown.object,
        error,
        exc_info=(thrown.exc_type, error, thrown.exc_traceback),
    )
