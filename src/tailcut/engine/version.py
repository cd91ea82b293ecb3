"""The deployment version: a hash of everything that an answer depends on.

Part of every prediction cache key: a new model, another feature query or an edited hook never meets an old entry.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tailcut.engine.row_coupling import rows_alone
from tailcut.manifest import Deployment
from tailcut.manifest.keys import to_plain
from tailcut.registry import Variant


def deployment_version(deployment: Deployment, artifact: str, hooks: Sequence[Callable[..., Any]]) -> bytes:
    """Return 16 bytes that change whenever an answer might.

    Args:
        artifact: what is served: the artifact's hash, its runtime and its settings.
        hooks: every function of the user that touches an answer; the whole file that defines each is hashed, so that
            an edit of a helper beside it counts too. A function without a file is hashed by its byte code.
    """
    digest = hashlib.blake2b(digest_size=16)
    settings = [
        to_plain(part)
        for part in (deployment.name, deployment.model, deployment.features.groups, deployment.features.entity)
    ]
    for part in (artifact.encode(), msgspec.msgpack.encode(settings, enc_hook=repr), *map(_code_of, hooks)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def version_of(deployment: Deployment, variant: Variant, functions: Sequence[Callable[..., Any]]) -> bytes:
    """Return the deployment version of a variant: another runtime or other settings may round otherwise, too.

    A variant whose rows run alone has another version than the same artifact had before: what a server kept that ran
    its rows together is no answer any more.
    """
    served = (variant.sha256, variant.runtime, *sorted(f"{name}={value!r}" for name, value in variant.settings.items()))
    if rows_alone(variant):
        served = (*served, "rows_alone")
    return deployment_version(deployment, " ".join(served), functions)


def _code_of(hook: Callable[..., Any]) -> bytes:
    """Return the files of a hook and of everything that it wraps, with the arguments that were bound to it."""
    parts: list[bytes] = []
    while True:
        if isinstance(hook, functools.partial):
            parts.append(repr((hook.args, hook.keywords)).encode())
            hook = hook.func
            continue
        parts.append(_file_of(hook))
        wrapped = getattr(hook, "__wrapped__", None)
        if wrapped is None:
            return msgspec.msgpack.encode(parts)
        hook = wrapped


def _file_of(hook: Callable[..., Any]) -> bytes:
    target = hook if inspect.isroutine(hook) or inspect.isclass(hook) else type(hook)
    try:
        path = inspect.getsourcefile(target)
        if path is not None:
            return Path(path).read_bytes()
    except (OSError, TypeError):
        pass
    code = getattr(target, "__code__", None)
    return marshal.dumps(code) if code is not None else repr(target).encode()
