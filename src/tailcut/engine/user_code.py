"""The user's functions that touch an answer: imported once, checked, and given their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import numpy as np

from tailcut import text
from tailcut.core.buckets import powers
from tailcut.core.tensors import Arrays
from tailcut.engine.assembly import Assembly, Postprocess, Preprocess
from tailcut.engine.hooks import Hooks, time_postprocess
from tailcut.engine.limits import input_specs
from tailcut.engine.seating import Warm
from tailcut.engine.ticket import run_rows
from tailcut.engine.warming import WARM_UP_RUNS, example_inputs
from tailcut.errors import StartError
from tailcut.manifest import Deployment, Manifest, resolve


class UserCode(NamedTuple):
    """What the manifest names, imported.

    Attributes:
        preprocess: the user's hook, or the tokenizer of a Hugging Face folder; None where there is neither.
        postprocess: the user's hook, or the names of a Hugging Face classifier's scores; None where there is neither.
        functions: every function that an answer depends on, for the deployment version.
        fields: of a row, where no hook of the user's reads it: what the implied preprocess reads; else empty.
    """

    preprocess: Preprocess | None
    postprocess: Postprocess | None
    functions: tuple[Callable[..., Any], ...]
    fields: tuple[str, ...] = ()


def import_code(manifest: Manifest) -> UserCode:
    """Import every function of the user that touches an answer, in the manifest's order.

    Raises:
        ManifestError: one cannot be imported.
        StartError: a hook is async, or a tokenizer cannot be read.
    """
    deployment = manifest.deployment
    model = deployment.model
    references = [model.preprocess, model.postprocess]
    references += [group.function for group in deployment.features.groups]
    found: dict[str, Callable[..., Any]] = {
        reference: resolve(reference, manifest) for reference in references if reference
    }
    for key, reference in (("model.preprocess", model.preprocess), ("model.postprocess", model.postprocess)):
        _refuse_async(key, reference, found.get(reference))
    functions = list(found.values())
    preprocess = found.get(model.preprocess) or text.preprocess_of(manifest)
    postprocess = found.get(model.postprocess) or text.postprocess_of(manifest)
    # What a folder implies; the user's own functions are there already.
    functions += [each for each in (preprocess, postprocess) if each is not None and each not in functions]
    return UserCode(preprocess, postprocess, tuple(functions), text.fields_of(preprocess))


def _refuse_async(key: str, reference: str, hook: Any) -> None:
    if hook is not None and (iscoroutinefunction(hook) or iscoroutinefunction(getattr(hook, "__call__", None))):  # noqa: B004
        raise StartError(
            f"{key}: {reference} is async; only plain functions are supported",
            hint="write it as a plain function: where it is slow it runs in a thread",
        )


async def place_hooks(
    deployment: Deployment, code: UserCode, assembly: Assembly, warm: Warm, outputs: Sequence[str]
) -> Hooks | None:
    """Make what runs the hooks; postprocess is measured on what the warm-up computes, off the event loop."""
    if code.preprocess is None and code.postprocess is None:
        return None
    hooks = Hooks(
        assembly,
        preprocess=code.preprocess is not None,
        postprocess=code.postprocess is not None,
        stuck_after_s=deployment.slo.timeout_s,
    )
    if code.postprocess is not None:
        sizes = powers(deployment.batching.max_rows)
        example = example_inputs(input_specs(deployment.model, warm.variant.bounds), 1)
        computed = _repeated(partial(run_rows, warm.runtimes[0], example, 1, outputs), sizes)
        timed = partial(time_postprocess, assembly, computed, WARM_UP_RUNS)
        for rows, took_ns in await asyncio.get_running_loop().run_in_executor(None, timed):
            hooks.postprocess.observe(rows, took_ns)
    return hooks


def _repeated(run: Callable[[], Arrays], sizes: Sequence[int]) -> Iterator[Arrays]:
    """Yield what the model gives for one row, repeated to each size: it runs what it will be served with."""
    one = run()
    for rows in sizes:
        yield {name: np.repeat(array, rows, axis=0) for name, array in one.items()}
