"""onnxruntime's own telemetry, kept off."""

from __future__ import annotations

import os

_SWITCH = "ORT_DISABLE_TELEMETRY"


def keep_off() -> None:
    """Have onnxruntime send nothing and write nothing about its use; call it before it is imported for the first time.

    onnxruntime 1.31 keeps a database of events in the user's cache folder and a thread that works on it, from the first
    session on (``disable_telemetry_events()`` comes too late for both). A server's models and requests are its owner's
    business. Whoever wants the telemetry sets the variable to 0 himself.
    """
    os.environ.setdefault(_SWITCH, "1")
