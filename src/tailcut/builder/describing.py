"""Describes a source model for a new manifest: its tensors, and the limits that it proves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.builder.bounds import of_source
from tailcut.builder.calling import call, said
from tailcut.builder.holdouts import tables
from tailcut.builder.holdouts.datatypes import fitted
from tailcut.builder.holdouts.files import is_file
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.objects import is_module, names_of
from tailcut.builder.quality.reference import caller
from tailcut.common.bounds import Bound
from tailcut.common.scalars import is_missing
from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array, Arrays
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.models.runtimes.checks import FREE_BATCH
from tailcut.models.runtimes.live import source_path

_ROWS = 3
_FREE = 4
"""Size of free dimensions in the example rows of an .onnx file."""

_MOST_OUTPUTS = 64
"""Outputs of a module that are looked at: how many there are is known only after it has run."""

_FP32_BYTES = 4


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a model and its limits.

    Attributes:
        inputs: the tensors of ``model.inputs``.
        outputs: the tensors of ``model.outputs``.
        bounds: limits of the inputs that the model proves.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    bounds: tuple[Bound, ...] = ()


def describe(source: str, holdout: str, folder: Path) -> Described:
    """Describe a model.

    Args:
        source: as ``model.source`` has it.
        holdout: as ``holdout.source`` has it; may be empty for an .onnx file.
        folder: the manifest's.

    Raises:
        ManifestError: a reference cannot be imported.
        BuildError: the model or the holdout cannot be made or read, or a holdout is missing.
    """
    manifest = _manifest(source, folder)
    path = source_path(manifest)
    if path is not None:
        return _of_file(path, holdout, manifest)
    model = call("model.source", source, manifest)
    if not holdout:
        raise BuildError(
            f"{source} gave a {type(model).__name__}, which does not describe its input tensors",
            hint="give rows for the model: --holdout module:function (returns a tailcut.build.Holdout), or a .npz, "
            ".csv or .parquet file; an .onnx file needs no rows",
        )
    rows = _read(holdout, manifest, names_of(model))
    # As wide as the mask: tokens, of which serving takes any number.
    width = rows.inputs[rows.padding].shape[1] if rows.padding else None
    inputs = tuple(_tensor(model, name, array, width) for name, array in rows.inputs.items())
    section = Model(
        source=source,
        inputs=inputs,
        outputs=tuple(TensorSpec(name=f"output_{place}") for place in range(_MOST_OUTPUTS)),
    )
    return _of_object(model, section, fitted(Holdout(rows.inputs), section).inputs, width)


def _of_object(model: Any, section: Model, arrays: Arrays, width: int | None) -> Described:
    """Describe an object; ``section.outputs`` has more outputs than it gives, of which the first are filled."""
    rows = {name: array[:_ROWS] for name, array in arrays.items()}
    try:
        run = caller(model, None, section)
        found = list(run(rows).values())
    except TailcutError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in rows.items())
        raise BuildError(
            f"the {type(model).__name__} fails on rows of the holdout ({shapes}): {said(error)}",
            hint="give the holdout's inputs in the form and order of the model's arguments",
        ) from error
    name = "probability" if hasattr(model, "predict_proba") else "prediction" if hasattr(model, "predict") else "output"
    names = [name] if len(found) == 1 else [f"{name}_{place}" for place in range(len(found))]
    outputs = tuple(_output(model, name, array, width) for name, array in zip(names, found, strict=True))
    bounds = of_source(model, run, section.inputs, rows).bounds
    return Described(inputs=section.inputs, outputs=outputs, bounds=tuple(bounds))


def _of_file(path: Path, holdout: str, manifest: Manifest) -> Described:
    if path.suffix != ".onnx" or not path.is_file():
        raise BuildError(
            f"{path} is not an .onnx file",
            hint="--from-model takes an .onnx file or module:function; for a model in another file write a "
            "function that loads and returns it; of a Hugging Face folder the inputs are input_ids and attention_mask, "
            "INT64 [-1, -1]",
        )
    inputs, outputs = _nodes(path)
    arrays = _read(holdout, manifest, [tensor.name for tensor in inputs]).inputs if holdout else {}
    rows = {tensor.name: arrays.get(tensor.name, _zeros(tensor))[:_ROWS] for tensor in inputs}
    run = caller(None, path, Model(source=str(path), inputs=inputs, outputs=outputs))
    bounds = of_source(None, run, inputs, rows, path=path).bounds
    return Described(inputs=inputs, outputs=outputs, bounds=tuple(bounds))


def _nodes(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the input and output tensors of an .onnx file."""
    import onnxruntime

    try:
        opened = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BuildError(f"cannot open {path}: {said(error)}", hint="open it with onnxruntime alone") from error
    inputs, outputs = (
        tuple(_of_node(node, path) for node in nodes) for nodes in (opened.get_inputs(), opened.get_outputs())
    )
    return inputs, outputs


def _of_node(node: Any, path: Path) -> TensorSpec:
    kinds = {
        "string": "BYTES",
        "float": "FP32",
        "double": "FP64",
        "float16": "FP16",
        **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "bool": "BOOL",
    }
    datatype: Any = kinds.get(str(node.type).removeprefix("tensor(").removesuffix(")"))
    if datatype is None or not node.shape:
        raise BuildError(
            f"{path}: {node.name!r} is {node.type} {node.shape}, which is not a tensor with one row per example",
            hint="export the model with plain tensors whose first dimension is the batch",
        )
    if isinstance(node.shape[0], int) and node.shape[0] > 0:
        raise BuildError(
            f"{path}: {node.name!r} is {node.shape}: its batch is fixed to {node.shape[0]}", hint=FREE_BATCH
        )
    shape = (-1, *(size if isinstance(size, int) and size > 0 else -1 for size in node.shape[1:]))
    return TensorSpec(name=node.name, datatype=datatype, shape=shape)


def _zeros(tensor: TensorSpec) -> Array:
    shape = (2, *(_FREE if size == -1 else size for size in tensor.shape[1:]))
    return (
        np.full(shape, "", dtype=object) if tensor.datatype == "BYTES" else np.zeros(shape, NUMPY_OF[tensor.datatype])
    )


# -- The holdout -------------------------------------------------------------------------------------------------------


def _read(reference: str, manifest: Manifest, names: Sequence[str]) -> Holdout:
    """Return the holdout; of a file the columns of these names."""
    if is_file(reference):
        return Holdout(_columns(manifest.directory / reference, names))
    holdout = call("holdout.source", reference, manifest)
    if not isinstance(holdout, Holdout):
        raise BuildError(
            f"{reference} gave a {type(holdout).__name__}, expected a tailcut.build.Holdout",
            hint="return Holdout(inputs={...}, labels=...)",
        )
    return holdout


def _columns(path: Path, names: Sequence[str]) -> Arrays:
    try:
        found = tables.read(path)
        found |= tables.as_text(path, tables.text_columns(path, found, names))
    except Exception as error:
        raise BuildError(
            f"cannot read the holdout {path}: {said(error)}", hint="relative paths start at the manifest's folder"
        ) from error
    missing = [name for name in names if name not in found]
    if missing or not names:
        what = f"no column {missing[0]!r}" if missing else "columns, of which the model does not say which it takes"
        raise BuildError(
            f"the holdout {path} has {what}; it has {', '.join(list(found)[:12])}",
            hint="fit the model on a DataFrame, so that it knows its column names (the first step of a Pipeline, where "
            "it is your own, must set self.feature_names_in_ = X.columns.to_numpy() in fit), or give a function that "
            "returns Holdout(inputs={...}): --holdout module:function",
        )
    return {name: tables.numbers_of(found[name]) for name in names}


def _tensor(model: Any, name: str, array: Any, width: int | None) -> TensorSpec:
    datatype: Any = "BYTES" if array.dtype.kind in "OUS" else DATATYPE_OF.get(array.dtype)
    if datatype is None:
        raise BuildError(
            f"the holdout's input {name!r} holds {array.dtype}, which is not a datatype of the protocol",
            hint="convert it to numbers or text with astype",
        )
    if datatype == "FP64" and is_module(model):
        # As the build does with a holdout's float64; a module computes in the datatype of its weights.
        doubles = [weight.element_size() > _FP32_BYTES for weight in model.parameters() if weight.is_floating_point()]
        datatype = "FP64" if any(doubles) else "FP32"
    shape = (-1, *(-1 if size == width else size for size in array.shape[1:]))
    return TensorSpec(name=name, datatype=datatype, shape=shape, allow_nan=_has_gaps(array))


def _has_gaps(array: Any) -> bool:
    if array.dtype.kind == "O":
        return any(map(is_missing, array.ravel()))
    return array.dtype.kind == "f" and not bool(np.isfinite(array).all())


def _manifest(source: str, folder: Path) -> Manifest:
    unknown = (TensorSpec(name="unknown"),)
    model = Model(source=source, inputs=unknown, outputs=unknown)
    return Manifest(Deployment(name="my-model", model=model), folder.resolve())


def _output(model: Any, name: str, array: Array, width: int | None) -> TensorSpec:
    datatype: Any = DATATYPE_OF.get(array.dtype, "FP32")
    # Models of tables are served with float32 answers.
    datatype = "FP32" if datatype == "FP64" and not is_module(model) else datatype
    return TensorSpec(
        name=name, datatype=datatype, shape=(-1, *(-1 if size == width else size for size in array.shape[1:]))
    )
