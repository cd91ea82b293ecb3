"""Whose code a frame is, and how a place in it is called. Runs in the profiled process, many times per request."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

PROFILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""Files of the profile itself, hooks included."""
_OWN = os.path.join(os.path.dirname(os.path.dirname(PROFILE)), "")
"""All of tailcut: none of it is the user's, wherever it is installed."""
_NOT_THE_USERS = (PROFILE, "<frozen ", "/importlib/")
_LOOKS = range(50)
_MAX_FUNCTIONS = 10_000
_LIBRARY, _USER, _BELOW = range(3)
"""Whose a file is; below the hooks that take requests in there is nothing of any request."""
_ENTRIES = frozenset(
    os.path.join(PROFILE, name) for name in ("recording/blocking.py", "recording/middleware.py", "hooks/threads.py")
)


class Places:
    """Tells the user's files from those of libraries.

    Args:
        root: the user's folder.

    Attributes:
        name: of a file: relative to the user's folder, or from the library's package on.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.join(os.path.abspath(root), "")
        paths = sysconfig.get_paths()
        found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        found.update(site.getsitepackages(), [site.getusersitepackages()])
        self._libraries = tuple(
            os.path.join(folder, "") for one in found for folder in {os.path.abspath(one), os.path.realpath(one)}
        )
        self._kinds: dict[str, int] = {}
        self.name = functools.cache(self._shorten)
        # By their code, which functions that a request makes anew share; by its identity, as its hash reads all of it.
        self._functions: dict[int, tuple[str, str, bool]] = {}
        self._kept: list[CodeType] = []

    def is_user(self, filename: str) -> bool:
        """Say whether a code object's file is the user's own."""
        kind = self._kinds.get(filename)
        return (self._kind(filename) if kind is None else kind) == _USER

    def spot(self, frame: FrameType | None, *, through: bool = False) -> tuple[str | CodeType, int]:
        """Find the user's innermost code at or below ``frame`` and the instruction that it is at, which ``at`` names.

        Args:
            through: look below hooks that take requests in, too.

        Returns:
            them; "" and 0 where none is on the stack.
        """
        kinds = self._kinds
        for _ in _LOOKS:
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = self._kind(code.co_filename)
            if kind == _USER:
                return code, frame.f_lasti
            if kind == _BELOW and not through:
                break
            frame = frame.f_back
        return "", 0

    def at(self, code: CodeType, instruction: int) -> str:
        """Name the line of an instruction."""
        for start, end, line in code.co_lines():
            if start <= instruction < end and line is not None:
                return f"{self.name(code.co_filename)}:{line}"
        return self.of_code(code)

    def of_code(self, code: CodeType) -> str:
        """Name where a function begins."""
        return f"{self.name(code.co_filename)}:{code.co_firstlineno}"

    def describe(self, function: Any) -> tuple[str, str, bool]:
        """Name a callable, its place, and whether it is the user's."""
        if type(function) is not FunctionType:
            # Of a context manager made of a generator the methods are all alike; the generator is what is meant.
            if not isinstance(function, MethodType) or _is_manager(function.__self__):
                return self._describe(function)
            function = function.__func__
            if type(function) is not FunctionType:
                return self._describe(function)
        code = function.__code__
        known = self._functions.get(id(code))
        if known is None:
            # What says that it wraps another is that one; its code it shares with all that wrap in the same way.
            if type(inner := getattr(function, "__wrapped__", None)) is FunctionType:
                return self.describe(inner)
            known = self._describe(function)
            if len(self._kept) < _MAX_FUNCTIONS and inner is None:
                self._functions[id(code)] = known
                self._kept.append(code)
        return known

    def _describe(self, function: Any) -> tuple[str, str, bool]:
        code = code_of(function)
        name = getattr(unwrapped(function), "__qualname__", "")
        if not isinstance(name, str) or not name:  # there are objects that have whatever they are asked for
            name = type(unwrapped(function)).__qualname__
        name = name.replace("<locals>.", "")
        if code is None:
            return name, "", False
        return code.co_qualname.replace("<locals>.", ""), self.of_code(code), self.is_user(code.co_filename)

    def _kind(self, filename: str) -> int:
        kind = _BELOW if filename in _ENTRIES else _USER if self._judge(filename) else _LIBRARY
        self._kinds[filename] = kind
        return kind

    def _judge(self, filename: str) -> bool:
        if not filename or filename.startswith("<"):
            return False
        path = os.path.abspath(filename)
        if path.startswith(_OWN) or any(part in path for part in ("/site-packages/", "/dist-packages/")):
            return False
        if path.startswith(self._root):
            # A virtual environment in the user's folder is not the user's code.
            return not any(path.startswith(one) for one in self._libraries if one != self._root)
        return not any(path.startswith(one) for one in self._libraries)

    def _shorten(self, filename: str) -> str:
        if filename.startswith("<"):
            return filename
        path = os.path.abspath(filename)
        for marker in ("/site-packages/", "/dist-packages/"):
            if marker in path:
                return path.rpartition(marker)[2]
        if path.startswith(self._root):
            return path[len(self._root) :]
        for folder in sorted(self._libraries, key=len, reverse=True):
            if path.startswith(folder):
                return path[len(folder) :]
        return os.path.relpath(path, self._root) if len(os.path.relpath(path, self._root)) < len(path) else path


def users_lines(parts: Iterable[str], count: int) -> str:
    """Return the last lines of a formatted traceback or stack, without frames of the profile and the import system.

    Args:
        parts: one per frame.
        count: of the lines.
    """
    kept = (part for part in parts if not any(one in _file_of(part) for one in _NOT_THE_USERS))
    return "\n".join("".join(kept).rstrip().splitlines()[-count:])


def _file_of(part: str) -> str:
    """Return the line that names a frame's file; empty where a part is no frame: an error's text may name any file."""
    line = part.partition("\n")[0]
    return line if line.lstrip(" |").startswith('File "') else ""


def unwrapped(function: Any) -> Any:
    """Take off partials, bound methods and decorators that say what they wrap."""
    for _ in range(20):
        if isinstance(function, functools.partial):
            function = function.func
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            function = inner
        elif hasattr(function, "__func__"):
            function = function.__func__
        else:
            break
    return function


def _is_manager(bound: Any) -> bool:
    """Whether it is a context manager that contextlib made of a generator, whatever else has an attribute ``gen``."""
    return type(bound).__module__ == "contextlib"


def code_of(function: Any) -> CodeType | None:
    """Find the code that a callable runs; None for one that is not written in Python."""
    plain = unwrapped(function)
    bound = getattr(function, "__self__", None)
    # A context manager made of a generator: what runs on entry and exit is the generator.
    generator = getattr(bound, "gen", None) if _is_manager(bound) else None
    for source in (generator, plain):
        for name in ("gi_code", "ag_code", "__code__"):
            code = getattr(source, name, None)
            if isinstance(code, CodeType):
                return code
    call: Callable[..., Any] | None = getattr(type(plain), "__call__", None)  # noqa: B004  (it is looked at, not called)
    code = getattr(call, "__code__", None)
    return code if isinstance(code, CodeType) else None
