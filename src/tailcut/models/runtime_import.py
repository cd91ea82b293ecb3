"""Brings in the library of a runtime while requests are being answered, without holding them up for long.

A first import in a thread of its own stops the event loop all the same, wherever one C call keeps the GIL. Seen beside
a loop that looks at the clock every millisecond, longest pause of an import as it is and of one by ``bring_in``, on two
cores that others kept busy: torch 236-886 and 18-163 ms, lightgbm 66-131 and 23-45 ms, xgboost 62-262 and 21-68 ms,
scikit-learn 45-129 and 25-84 ms; OpenVINO 11-82 ms either way. Two things did it: the dynamic linker, which keeps the
GIL while it loads and relocates hundreds of megabytes, and full garbage collections, which an import with its many new
objects sets off.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tailcut.common.runtime_spec import spec_of
from tailcut.models.runtimes.telemetry import keep_off


def bring_in(runtime: str) -> None:
    """Import what a runtime needs, where that was not done yet; what fails here is for the runtime to tell."""
    spec = spec_of(runtime)
    package = spec.imports
    if not package or package in sys.modules:
        return
    with suppress(Exception):
        for path in _shared(package, spec.shared):
            load_shared(path)
        with _no_collections():
            if spec.loads:
                module, _, function = spec.loads.partition(":")
                getattr(import_module(module), function)()
            else:
                keep_off()
                import_module(package)


def load_shared(path: Path) -> bool:
    """Load a shared library without holding the GIL; tell whether that worked.

    What imports it afterwards finds it loaded. ctypes' own way of opening a library keeps the GIL; a call of a C
    function through ctypes does not, and dlopen is one.
    """
    import ctypes

    opened = ctypes.CDLL(None).dlopen
    opened.argtypes, opened.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    return opened(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL) is not None


def _shared(package: str, patterns: Sequence[str]) -> Iterator[Path]:
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for pattern in patterns:
            yield from sorted(Path(folder).glob(pattern))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage meanwhile, and never look at what was made meanwhile: modules stay for good."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
