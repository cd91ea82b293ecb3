"""Calls the user's functions that make the model and the holdout, and says which line of theirs went wrong."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from tailcut.common.user_frames import place
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Manifest, resolve


def call(key: str, reference: str, manifest: Manifest) -> Any:
    """Call, without arguments, what a reference of the manifest names.

    Args:
        key: of the manifest, for the error's text.

    Raises:
        ManifestError: it cannot be imported.
        BuildError: it raised; names the innermost line of the user's, or where the function stands.
    """
    function = resolve(reference, manifest)
    try:
        return function()
    except TailcutError:
        raise
    except Exception as error:
        traceback.print_exc()
        module, _, name = reference.partition(":")
        where = place(error) or _defined(function)
        raise BuildError(
            f"{key} {reference} raised {said(error)}{f' ({where})' if where else ''}",
            hint=f"fix it, and try it alone: python -c 'import {module}; {module}.{name}()'",
        ) from error


def said(error: BaseException) -> str:
    """Return the kind of an exception and the first line of what it says."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _defined(function: Callable[..., Any]) -> str:
    """Where a function begins: the caller of one that takes arguments is tailcut, which is not to blame."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
