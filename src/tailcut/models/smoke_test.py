"""Smoke test of a variant: opens it in a process of its own, runs some rows, and looks at the answers.

A file whose hash is right may still be of no use: its package is not installed, the code that it belongs to has moved,
its library crashes on it. Only opening it shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, ExecutorLost, MissingExtra, NotServable, StartError, TailcutError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.manifest.answer_settings import other_tensors
from tailcut.manifest.schema import RegistrySettings as Section
from tailcut.models.batch_item import check_rows
from tailcut.models.example_rows import Examples, examples_of
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.registry import Registry, Variant, Version

_AGAIN = "promote another version, or run `tailcut build` again"


def try_variant(registry: Registry, manifest: Manifest | None, version: Version, name: str) -> str:
    """Test one variant; return what was run.

    Args:
        registry: that holds it.
        manifest: of the model whose variants may need code; None: only variants that need none are opened.

    Raises:
        NotServable: it is whole, and cannot be served here: what is missing, and the way out.
        ArtifactError: its artifact is damaged, or it crashes, fails on rows of the holdout, or answers them with NaN or
            infinity.
    """
    what = f"variant {name!r} of model {version.model!r} version {version.id}"
    variant = registry.variant(version.model, name, version.id)
    code = ", ".join(version.variants[name].live_code)
    if manifest is None or manifest.deployment.name != version.model:
        if code:
            raise NotServable(
                f"{what} needs live code {code} of the manifest of {version.model!r}",
                hint="run this with that manifest and without --registry",
            )
        manifest = _bare(registry, version)
    elif differ := other_tensors(manifest.deployment, version.inputs, version.outputs):
        raise NotServable(
            f"{what}: {differ}",
            hint="use the manifest of its build (`tailcut registry show --json` prints it)",
        )
    try:
        runtime = RemoteRuntime(manifest, variant, threads=1)
    except TailcutError as error:
        # How a server may open it in another way is no way out here.
        hint = error.hint if isinstance(error, MissingExtra) or not isinstance(error, StartError) else ""
        if code:
            needs = f"{what} needs live code {code}, and cannot be opened with the code here"
            raise NotServable(f"{needs}: {error.explained}", hint=_with(hint, _AGAIN)) from error
        kind = NotServable if isinstance(error, MissingExtra) else ArtifactError
        raise kind(f"{what} cannot be opened: {error.explained}", hint=_with(hint, _AGAIN)) from error
    try:
        return _run(runtime, examples_of(manifest, variant, registry), variant, what)
    finally:
        runtime.close()


def _run(runtime: Runtime, examples: Examples, variant: Variant, what: str) -> str:
    """Run the rows; return how many, and of which kind."""
    batches, are_real = _batches(examples, variant)
    outputs = [tensor.name for tensor in variant.outputs]
    said = "rows of the holdout" if are_real else "invented rows"
    wrong: list[str] = []
    count = 0
    for inputs in batches:
        rows = len(next(iter(inputs.values())))
        count += rows
        try:
            answers = runtime.run(inputs, outputs)
            check_rows(answers, rows)
            wrong += _not_finite(answers, variant.outputs)
        except ExecutorLost as error:
            raise ArtifactError(f"{what} crashes on {said}: {error.explained}", hint=_AGAIN) from error
        except TailcutError as error:
            wrong.append(error.explained)
    if not wrong:
        return f"opened, {count} {said}"
    if not are_real:  # the model may refuse them, and be right
        return f"opened, but not with {said}: {wrong[0]}"
    raise ArtifactError(f"{what} opens, but not with {said}: {wrong[0]}", hint=_AGAIN)


def _batches(examples: Examples, variant: Variant) -> tuple[Sequence[Arrays], bool]:
    """Return inputs to run, and whether they are rows of the holdout."""
    together = examples.batch(1 if variant.evidence.rows_alone else 2)
    return [*(examples.each() if examples.are_real else ()), together], examples.are_real


def _not_finite(answers: Arrays, outputs: Sequence[TensorSpec]) -> list[str]:
    found = []
    for tensor in outputs:
        array = answers[tensor.name]
        if array.dtype.kind == "f" and not tensor.allow_nan and (bad := ~np.isfinite(array)).any():
            rows = int(bad.reshape(len(array), -1).any(axis=1).sum())
            found.append(f"output {tensor.name!r} is not finite in {rows} of {len(array)} rows")
    return found


def _bare(registry: Registry, version: Version) -> Manifest:
    """Return a manifest for a variant that needs none of its own."""
    deployment = Deployment(
        name=version.model,
        model=Model(source="unknown:unknown", inputs=version.inputs, outputs=version.outputs),
        registry=Section(path=registry.url if registry.folder is None else str(registry.folder.resolve())),
    )
    return Manifest(deployment, Path.cwd())


def _with(*hints: str) -> str:
    return "; ".join(hint for hint in hints if hint)
