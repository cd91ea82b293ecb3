"""Where in the user's code an exception comes from: neither tailcut's own lines nor a library's help who reads it."""

from __future__ import annotations

import sysconfig
import traceback

_LIBRARIES = {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_USERS = (f"{__file__.rpartition('/common/')[0]}/", *_LIBRARIES)


def place(error: BaseException) -> str:
    """Return "file:line" of the innermost code of the user's that raised; empty where none of it was running."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{error.filename}:{error.lineno}"  # no code of that file was running yet
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS) and not name.startswith("<"):
            found = f"{name}:{line}"
    return found


def innermost(error: BaseException) -> str:
    """Return "file:line" where an exception was raised, whoever wrote that line; empty where it never was."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
