"""What runtimes share: importing their library, checking artifact and settings, and the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tailcut.common.extras import install
from tailcut.common.tensors import DATATYPE_OF, Arrays
from tailcut.errors import ArtifactError, InferenceError, MissingExtra
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.base import Openable, OpenOptions

_HINT = (
    "make model.inputs and model.outputs in the manifest agree with the model, or build again: a version keeps "
    "those of its build"
)

FREE_BATCH = (
    "export the model with a free first dimension: in torch.onnx.export name it in dynamic_shapes (or dynamic_axes), "
    "for every input"
)
"""Way out for a file whose batch is fixed: requests are served in batches of any size."""

AGAIN = "run `tailcut build` again, or promote another version"
"""Way out for an artifact that cannot be used."""

Described = tuple[str, tuple[int, ...] | None]
"""Datatype, and dimensions with -1 for a free one; None where the model does not tell its rank."""


def load_library(package: str, needs: str, otherwise: str = "") -> Any:
    """Import the library of a runtime.

    Args:
        package: to import, such as "openvino" or "skops.io".
        needs: what needs which package, for the error.
        otherwise: another way out than installing it.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtra(f"{needs}: {error}", hint=install(package) + otherwise) from error


def refuse_text(variant: Openable, runtime: str) -> None:
    """Refuse inputs of text, for a runtime that takes numbers only.

    Raises:
        ArtifactError: an input is BYTES.
    """
    for tensor in variant.inputs:
        if tensor.datatype == "BYTES":
            raise ArtifactError(
                f"input {tensor.name!r} is BYTES, which {runtime} cannot take",
                hint="turn text into numbers in the preprocess hook",
            )


def unfit_settings(variant: str, why: str) -> ArtifactError:
    """Return the error for settings that a runtime cannot open a variant with."""
    return ArtifactError(f"settings of variant {variant!r}: {why}", hint="run `tailcut build` again")


def unknown_setting(settings: Mapping[str, Any], known: Sequence[str]) -> str:
    """Say which setting a runtime does not know; empty where it knows all."""
    unknown = sorted(set(settings) - set(known))
    return f"there is no setting {unknown[0]!r}; they are {', '.join(known)}" if unknown else ""


def batch_failed(variant: str, inputs: Arrays, said: str) -> InferenceError:
    """Return the error for a batch that a library refused or failed in."""
    return InferenceError(
        f"variant {variant!r} failed on {shapes(inputs)}: {said}",
        hint="the other batches are not affected; try the same rows one at a time",
    )


def check_tensors(
    variant: Openable, kind: str, wanted: tuple[TensorSpec, ...], found: Mapping[str, Described], names: list[str]
) -> None:
    """Compare the manifest's tensors with the model's: names, datatypes, ranks and fixed dimensions.

    Args:
        variant: whose artifact was opened.
        kind: "input" or "output", for the error's text.
        wanted: the manifest's.
        found: the model's, by name; a tensor may stand under several names.
        names: one name of each of the model's tensors, for the error's text.

    Raises:
        ArtifactError: a tensor is missing, an input is left over, or one does not fit.
    """
    asked = {tensor.name for tensor in wanted}
    unfed = kind == "input" and len(names) > len(asked)
    if unfed or any(tensor.name not in found for tensor in wanted):
        raise ArtifactError(
            f"{kind}s of {variant.artifact} (variant {variant.name!r}) are {sorted(names)}, "
            f"the manifest names {sorted(asked)}",
            hint=_HINT,
        )
    for tensor in wanted:
        datatype, shape = found[tensor.name]
        if datatype != tensor.datatype or not _fits(tensor.shape, shape):
            fixed = f"; its batch is fixed to {shape[0]}" if shape and shape[0] != -1 else ""
            raise ArtifactError(
                f"{kind} {tensor.name!r} of {variant.artifact} (variant {variant.name!r}) is {datatype} "
                f"{list(shape or ())}, the manifest says {tensor.datatype} {list(tensor.shape)} "
                f"(-1 is a free dimension){fixed}",
                hint=FREE_BATCH if fixed else _HINT if variant.name != "source" else _as_it_is(datatype, shape),
            )


def _as_it_is(datatype: str, shape: tuple[int, ...] | None) -> str:
    """What to write for a model that is served without a build."""
    tail = ", ".join(map(str, (shape or ())[1:]))
    return f'set in the manifest: datatype = "{datatype}", shape = [-1{f", {tail}" if tail else ""}]'


def _fits(wanted: tuple[int, ...], found: tuple[int, ...] | None) -> bool:
    if found is None:
        return True
    return len(wanted) == len(found) and all(b in (-1, a) for a, b in zip(wanted, found, strict=True))


def shapes(inputs: Arrays) -> str:
    """Name datatypes and shapes of a batch, for an error's text."""
    return ", ".join(
        f"{name} {DATATYPE_OF.get(array.dtype, str(array.dtype))} {list(array.shape)}" for name, array in inputs.items()
    )


def first_line(error: BaseException) -> str:
    """First line of a library's error: the rest is its stack."""
    return str(error).strip().partition("\n")[0]


def named_line(error: BaseException) -> str:
    """Class and first line of an error of a library that raises many kinds."""
    return f"{type(error).__name__}: {first_line(error)}"


def source_for(variant: Openable, options: OpenOptions, what: str) -> Callable[[], Any]:
    """Return what makes the live object that an artifact belongs to.

    Args:
        what: the artifact is, and needs: for the error.

    Raises:
        ArtifactError: there is nothing that makes it.
    """
    if options.source is None:
        raise ArtifactError(
            f"variant {variant.name!r} is {what} that it belongs to",
            hint="set model.source to 'package.module:callable', or serve variant 'onnx'",
        )
    return options.source
