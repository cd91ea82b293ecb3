"""The user's functions that touch an answer: imported once, checked, and given their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from tailcut import text
from tailcut.code.files import serving_references
from tailcut.code.loaded import IMPORTS, LoadedCode, begin
from tailcut.common.tensors import Arrays
from tailcut.errors import StartError
from tailcut.manifest import Deployment, Manifest, resolve
from tailcut.models.batch_item import run_rows
from tailcut.models.runtimes.bucketed import powers
from tailcut.models.variant_loader import Warm
from tailcut.models.warm_up import WARM_UP_RUNS
from tailcut.pipeline.hooks import Hooks
from tailcut.pipeline.row_transform import Postprocess, Preprocess, RowTransform


class HookCode(NamedTuple):
    """What the manifest names, imported.

    Attributes:
        preprocess: the user's hook, or the tokenizer of a Hugging Face folder; None where there is neither.
        postprocess: the user's hook, or the names of a Hugging Face classifier's scores; None where there is neither.
        files: the code behind them, as it was imported, for the deployment version.
        fields: of a row, where no hook of the user's reads it: what the implied preprocess reads; else empty.
    """

    preprocess: Preprocess | None
    postprocess: Postprocess | None
    files: LoadedCode
    fields: tuple[str, ...] = ()


def import_code(manifest: Manifest, also: Sequence[str] = ()) -> HookCode:
    """Import every function of the user that touches an answer, in the manifest's order.

    Args:
        also: references of what opening the variant imports; see ``deployment_version.opening_references``.

    Raises:
        ManifestError: one cannot be imported, or a file of ``model.files`` is missing.
        StartError: a hook is async, or a tokenizer cannot be read.
    """
    model = manifest.deployment.model
    with IMPORTS:
        before, began_s = begin()
        found: dict[str, Callable[..., Any]] = {
            reference: resolve(reference, manifest) for reference in serving_references(manifest)
        }
        for key, reference in (("model.preprocess", model.preprocess), ("model.postprocess", model.postprocess)):
            _refuse_async(key, reference, found.get(reference))
        preprocess = found.get(model.preprocess) or text.preprocess_of(manifest)
        postprocess = found.get(model.postprocess) or text.postprocess_of(manifest)
        files = LoadedCode(manifest, before, began_s)
        files.import_also(also)
        return HookCode(preprocess, postprocess, files, text.fields_of(preprocess))


def _refuse_async(key: str, reference: str, hook: Any) -> None:
    if hook is not None and (iscoroutinefunction(hook) or iscoroutinefunction(getattr(hook, "__call__", None))):  # noqa: B004
        raise StartError(
            f"{key}: {reference} is async; only plain functions are supported",
            hint="write a plain function; slow ones run in a thread",
        )


async def place_hooks(
    deployment: Deployment, code: HookCode, transform: RowTransform, warm: Warm, outputs: Sequence[str]
) -> Hooks | None:
    """Make what runs the hooks; postprocess is measured on what the warm-up computes, off the event loop."""
    if code.preprocess is None and code.postprocess is None:
        return None
    hooks = Hooks(
        transform,
        preprocess=code.preprocess is not None,
        postprocess=code.postprocess is not None,
        stuck_after_s=deployment.slo.timeout_s,
        on_loop=deployment.pool.hooks == "auto",
    )
    if code.postprocess is not None and warm.warm_up_ns:  # else there is no row that the model answers
        sizes = powers(deployment.batching.max_rows)
        computed = partial(run_rows, warm.runtimes[0], warm.examples.batch(1), 1, outputs)
        timed = partial(_time_postprocess, transform, computed, sizes)
        for rows, took_ns in await asyncio.get_running_loop().run_in_executor(None, timed):
            hooks.postprocess.observe(rows, took_ns)
    return hooks


def _time_postprocess(
    transform: RowTransform, run: Callable[[], Arrays], sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return rows and nanoseconds of runs of postprocess on what the model gives for one row, repeated to each size.

    The row may be invented: a hook that cannot take what became of it is measured by its first requests, in threads.
    """
    durations_ns: list[tuple[int, int]] = []
    one = run()  # it runs what it will be served with
    for rows in sizes:
        arrays = {name: np.repeat(array, rows, axis=0) for name, array in one.items()}
        for _ in range(WARM_UP_RUNS):
            started_ns = perf_counter_ns()
            try:
                transform.answers(arrays, rows)
            except Exception:
                return durations_ns
            durations_ns.append((rows, perf_counter_ns() - started_ns))
    return durations_ns
