"""'package.module:callable' -> the callable."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tailcut.common.user_frames import place
from tailcut.errors import ManifestError
from tailcut.manifest.keys import meant
from tailcut.manifest.loading import Manifest, absolute
from tailcut.manifest.modules import check_loaded, claim


def resolve(reference: str, manifest: Manifest) -> Callable[..., Any]:
    """Import what a reference of the manifest names.

    The folders of ``python_path`` are put in front of ``sys.path`` first, once each, so that the user's code and
    what it imports later are found.

    Args:
        reference: 'package.module:callable'; the callable may be an attribute of a class ('module:Class.method').
        manifest: the manifest it stands in.

    Raises:
        ManifestError: no colon, no such module, an exception in the module, no such attribute, not callable, or a
            module whose name stands for another file in this process.
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise ManifestError(
            f'"{reference}" is not a reference: it needs a module, a colon and a name',
            hint="write 'package.module:callable'",
        )
    found: Any = _module(module_name, reference, manifest)
    seen = module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            hint = meant(part, public, f"define {part} there, or correct the reference")
            raise ManifestError(f"{reference}: {seen} has no {part}", hint=hint)
        found, seen = getattr(found, part), f"{seen}.{part}"
    if not callable(found):
        raise ManifestError(
            f"{reference}: a {type(found).__name__}, which cannot be called", hint="name a function or a class"
        )
    called: Callable[..., Any] = found
    return called


def folders_of(manifest: Manifest) -> list[str]:
    """Return the folders of ``python_path``, absolute; links stay, so that another release is the same code, edited."""
    return [str(absolute(manifest.directory / folder)) for folder in manifest.deployment.python_path]


def source_path(manifest: Manifest) -> Path | None:
    """Return the path of ``model.source`` where it is a file or folder, else None (then it is a callable)."""
    reference = manifest.deployment.model.source
    path = (manifest.directory / reference).resolve()
    if ":" in reference and "/" not in reference and not path.exists():
        return None
    return path


def _module(name: str, reference: str, manifest: Manifest) -> ModuleType:
    folders = folders_of(manifest)
    claim(manifest.deployment.name, folders, name, reference)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ManifestError(
                f"{reference}: there is no module {error.name}",
                hint=f"looked in {', '.join(folders) or 'no folders'} (python_path) and in the installed packages",
            ) from None
        raise _failed(reference, name, error, manifest) from error
    except Exception as error:
        raise _failed(reference, name, error, manifest) from error
    check_loaded(folders, reference)
    return found


def _failed(reference: str, name: str, error: BaseException, manifest: Manifest) -> ManifestError:
    last = traceback.format_exception_only(error)[-1].strip()
    found = place(error)
    where = f" ({found})" if found else ""
    hint = f"try it alone: python -c 'import {name}'"
    if isinstance(error, ModuleNotFoundError):
        hint = f"install the package of {error.name}"
        model = manifest.deployment.model
        if reference in (model.preprocess, model.postprocess):
            hint += ", or move the hooks to a module that does not import it; serving imports only that module"
    return ManifestError(f"{reference}: importing {name} raised {last}{where}", hint=hint)
