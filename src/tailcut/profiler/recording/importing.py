"""Imports the application that "module:attribute" names, and says what is wrong with one that cannot be served."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Any

from tailcut.profiler.child_channel import Said, facts

_LINES = 15


class Unusable(Exception):
    """The application cannot be served."""

    def __init__(self, phase: str, error: str, text: str = "") -> None:
        super().__init__(error)
        self.said = Said(kind="failed", phase=phase, error=error, text=text)


def load_application(target: str) -> Any:
    """Import "module:attribute", or call "module:function()"."""
    module_name, _, path = target.partition(":")
    import uvicorn

    # Only now, as uvicorn does it: a queue.py of the user's must not be taken for the standard library's before.
    sys.path.insert(0, os.getcwd())

    def refused(*args: Any, **kwargs: Any) -> None:
        raise Unusable(
            "server",
            f"{module_name} starts a server of its own when it is imported",
            _last_lines(traceback.format_stack()[:-1]),
        )

    kept = uvicorn.run, uvicorn.Server.run
    uvicorn.run, uvicorn.Server.run = refused, refused  # type: ignore[method-assign]
    try:
        found: Any = importlib.import_module(module_name)
    except Unusable:
        raise
    except (Exception, SystemExit) as error:
        raise Unusable("import", facts(error), _traceback(error)) from error
    finally:
        uvicorn.run, uvicorn.Server.run = kept  # type: ignore[method-assign]
    for name in path.removesuffix("()").split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Unusable("attribute", name) from None
    if path.endswith("()"):
        try:
            found = found()
        except Exception as error:
            raise Unusable("call", facts(error), _traceback(error)) from error
    _check_interface(found)
    return found


def _check_interface(application: Any) -> None:
    if not callable(application):
        raise Unusable("interface", f"a {type(application).__name__}, which cannot be called")
    needed = needed_parameters(application)
    if needed is None or len(needed) in {1, 3}:
        return
    kinds = {0: "a function that makes an application", 2: "a WSGI application"}
    raise Unusable("interface", f"{kinds.get(len(needed), 'callable')}: it takes ({', '.join(needed)})")


def needed_parameters(application: Any) -> tuple[str, ...] | None:
    """Name what an application must be called with: three in ASGI's third version, one in its second.

    None where that cannot be told; a class that is awaited after its call is as good as one with three.
    """
    if inspect.isclass(application) and hasattr(application, "__await__"):
        return None
    try:
        parameters = list(inspect.signature(application).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return tuple(one.name for one in parameters if one.default is one.empty and one.kind in plain)


def _traceback(error: BaseException) -> str:
    kept = [one for one in traceback.extract_tb(error.__traceback__) if "/tailcut/profiler/" not in one.filename]
    kept = [
        one for one in kept if not one.filename.startswith("<frozen importlib") and "/importlib/" not in one.filename
    ]
    return _last_lines([*traceback.format_list(kept), *traceback.format_exception_only(error)])


def _last_lines(parts: list[str]) -> str:
    kept = [part for part in parts if "/tailcut/profiler/" not in part and "<frozen " not in part]
    return "\n".join("".join(kept).rstrip().splitlines()[-_LINES:])
