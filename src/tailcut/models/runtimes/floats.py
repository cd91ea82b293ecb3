"""The processor's treatment of subnormal floats, which is a setting of each thread."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_ENVIRONMENT_BYTES = 256
"""More than any C library's fenv_t (glibc: 32 on x86-64, 8 on ARM64)."""

_DEFAULT = ctypes.c_void_p(-1)
"""FE_DFL_ENV of glibc and of musl: nothing is flushed."""


class subnormals_kept:  # noqa: N801  # used as a statement: with subnormals_kept()
    """Run a block with subnormal floats as IEEE 754 has them, whatever this thread does with them otherwise (2 us).

    Opening an onnxruntime session makes the thread count subnormals as zero (see ``onnxruntime.flush_subnormals``).
    OpenVINO must not compile or run a model in such a thread: it passes integers through float instructions, and small
    integers have the bits of subnormals (seen with 2026.4: a shape with a -1 in it, so that every batch of an exported
    BERT failed).

    Source: ISO C, fegetenv and fesetenv; where the C library has none, the block runs as it is.
    """

    def __enter__(self) -> None:
        library = _library()
        if library is not None:
            self._before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
            library.fegetenv(self._before)
            library.fesetenv(_DEFAULT)

    def __exit__(self, *_: object) -> None:
        library = _library()
        if library is not None:
            library.fesetenv(self._before)


_of_models: list[tuple[Any, Any]] = []
"""fesetenv, and the mode that models run in; empty where that is the thread's own."""


def confine_to_models() -> None:
    """Keep this thread's mode for threads and blocks that run models, and give this thread the default back.

    A thread that reads and writes requests must not flush: turning a double into FP32 and back would make 0 of a
    subnormal number that a client sent or that a model answered.
    """
    library = _library()
    if library is not None:
        mode = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        library.fegetenv(mode)
        _of_models[:] = [(library.fesetenv, mode)]
        library.fesetenv(_DEFAULT)


def take_mode_of_models() -> None:
    """Let this thread run models from now on, and those that it starts."""
    for set_mode, mode in _of_models:
        set_mode(mode)


class mode_of_models:  # noqa: N801  # used as a statement: with mode_of_models()
    """Run a model in a thread that has other work, too (1 us)."""

    def __enter__(self) -> None:
        for set_mode, mode in _of_models:
            set_mode(mode)

    def __exit__(self, *_: object) -> None:
        for set_mode, _mode in _of_models:
            set_mode(_DEFAULT)


@cache
def _library() -> Any:
    """The C library; calls of nanoseconds, so the GIL is kept."""
    library = ctypes.PyDLL(None)
    return library if hasattr(library, "fegetenv") and hasattr(library, "fesetenv") else None
