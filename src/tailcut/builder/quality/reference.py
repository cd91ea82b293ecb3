"""The reference of a build: the user's own object, called as the user calls it, beside the source variant.

Every verdict is relative to the source variant, so that a wrong one would be seen by no gate. It must give the user's
own answers on rows of the holdout before anything is built from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.calling import said
from tailcut.builder.holdouts import run as holdout_run
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.objects import is_module
from tailcut.common.tensors import Array, Arrays, Bools, Doubles
from tailcut.errors import BuildError
from tailcut.manifest import Model, TensorSpec
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.tables import BoosterInput, EstimatorTable, shaped
from tailcut.models.runtimes.torch import RETURN_TENSORS, described
from tailcut.models.runtimes.torch_call import in_order

BoosterCall = Callable[[Arrays], Array]


def booster_caller(model: Any, section: Model) -> BoosterCall | None:
    """Return what calls a booster or an estimator of LightGBM or XGBoost; None for any other model.

    An estimator or booster that was fitted on a DataFrame gets one; another gets one array of the inputs' datatypes.
    One that was fitted on pandas categories is given their codes, as numbers, which only the booster itself takes.
    """
    lightgbm, xgboost = sys.modules.get("lightgbm"), sys.modules.get("xgboost")
    if lightgbm is not None and isinstance(model, lightgbm.Booster | lightgbm.LGBMModel):
        return _lightgbm(lightgbm, model, section)
    if xgboost is not None and isinstance(model, xgboost.Booster | getattr(xgboost, "XGBModel", xgboost.Booster)):
        return _xgboost(xgboost, model, section)
    return None


def _lightgbm(lightgbm: Any, model: Any, section: Model) -> BoosterCall:
    from tailcut.builder.ensembles.lightgbm import is_binary
    from tailcut.models.runtimes.lightgbm import fitted_names

    booster = model if isinstance(model, lightgbm.Booster) else model.booster_
    output = section.outputs[0]
    names, what = fitted_names(booster, section.inputs), f"the {type(model).__name__}"
    classes = hasattr(model, "classes_") or is_binary(booster)
    if booster.pandas_categorical:
        rows = BoosterInput(section.inputs, booster.num_feature(), names, what)
        return lambda inputs: shaped(booster.predict(rows(inputs).astype(np.float64)), output, classes=classes)
    table = EstimatorTable(section.inputs, names, what)
    predict = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    return lambda inputs: shaped(predict(table(inputs)), output, classes=classes)


def _xgboost(xgboost: Any, model: Any, section: Model) -> BoosterCall:
    from tailcut.builder.ensembles.xgboost import booster_of, is_binary

    output = section.outputs[0]
    coded = "c" in (booster_of(model).feature_types or ())
    if not isinstance(model, xgboost.Booster) and not coded:
        names = model.get_booster().feature_names
        table = EstimatorTable(section.inputs, names, f"the {type(model).__name__}")
        classes = hasattr(model, "predict_proba")
        predict = model.predict_proba if classes else model.predict
        return lambda inputs: shaped(predict(table(inputs)), output, classes=classes)
    booster = booster_of(model)  # a copy whose multi:softmax gives probabilities
    inputs_of = EstimatorTable(section.inputs, booster.feature_names, "the Booster")
    binary = is_binary(booster)
    return lambda inputs: shaped(booster.predict(xgboost.DMatrix(inputs_of(inputs))), output, classes=binary)


Call = Callable[[Arrays], Arrays]

TABLE_ROWS = 4096
MODULE_ROWS = 256
"""Rows that are compared: of models on tables, and of torch modules and ONNX files, which are slow by comparison."""

_BATCH = 64

RELATIVE, OF_SPREAD = 1e-5, 1e-5
"""Of a value, and of the root mean square of the output: what rounding in float32 may differ by."""

_ULPS = 4
"""Of a value, in steps of float32 (of FP64, of double): what the last sums of an output far from 0 may differ by."""

_DOUBLE = 1e-4
"""Of those two in an output of FP64."""

_ROUNDED_SHARE = 0.001
"""Share of rows whose answer may change because the manifest's datatype rounds what the holdout gives."""

_SHOWN = 3
_LONGEST = 60


def caller(model: Any, path: Path | None, section: Model) -> Call:
    """Return what calls the user's object: input arrays by name -> outputs by name.

    An estimator is called with a DataFrame where it was fitted on one, else with one array; a torch module with its
    inputs by name or in the manifest's order (see ``in_order``); an .onnx file runs in an onnxruntime session with
    default options.

    Args:
        model: what ``model.source`` gave; None where it is a path.
        path: of an .onnx file.
        section: the manifest's model.
    """
    if path is not None:
        return _session(path, section)
    if is_module(model):
        return _module(sys.modules["torch"], model.eval(), section)
    return _table(model, section)


def check(call: Call, runtime: Runtime, holdout: Holdout, section: Model, *, variant: str) -> dict[str, object]:
    """Compare the source variant with the user's object on rows of the holdout, every output.

    Args:
        call: the user's object.
        runtime: the source variant, opened.
        holdout: rows in the manifest's datatypes; ``raw`` holds those that its datatypes round.
        variant: its name.

    Returns:
        evidence: rows, and per output the largest difference.

    Raises:
        BuildError: an answer differs by more than rounding; shows the first such rows.
    """
    tables = variant not in {"torch", "onnx"}
    count = min(holdout.rows, TABLE_ROWS if tables else MODULE_ROWS)
    names = [tensor.name for tensor in section.outputs]
    given = _joined_by_name([holdout_run.run(runtime, holdout, places, names) for places in _batches(count)], count)
    own = _answers(call, holdout, count, section)
    max_abs: dict[str, float] = {}
    for tensor in section.outputs:
        wrong, worst = differs(own[tensor.name], given[tensor.name])
        max_abs[tensor.name] = worst
        if wrong.any():
            raise _different(tensor, own, given, wrong, worst, holdout, variant)
    found: dict[str, object] = {"rows": count, "max_abs": max_abs}
    if tables and holdout.raw:
        found["rounded"] = _check_rounding(call, own, holdout, count, section)
    return found


def differs(own: Array, given: Array, *, scale: float = 1.0, centred: bool = False) -> tuple[Bools, float]:
    """Return which rows of one output differ by more than rounding, (rows,), and the largest difference.

    NaN is equal to NaN, and infinity to infinity of the same sign.

    Args:
        own, given: (rows, ...) of the same rows.
        scale: of the allowed difference, where both sides compute in another order.
        centred: measure values from the mean of their column, and allow the few steps of float32 that a value far
            from 0 costs. Else an offset hides what the output says: 50 Hz are rounded by 0.001, where the frequency of
            a grid varies by 0.015.
    """
    if own.shape != given.shape:
        return np.ones(len(own), dtype=np.bool_), float("inf")
    if own.dtype.hasobject or own.dtype.kind in "biuSU":
        unlike: Bools = np.any(np.asarray(own != given).reshape(len(own), -1), axis=1)
        return unlike, float(unlike.any())
    one: Doubles = own.astype(np.float64).reshape(len(own), -1)
    other: Doubles = given.astype(np.float64).reshape(len(own), -1)
    finite = np.isfinite(one)
    size = np.abs(_from_means(one, finite) if centred else one)
    spread = float(np.sqrt(np.mean(size[finite] ** 2))) if finite.any() else 0.0
    scale *= _DOUBLE if given.dtype == np.float64 else 1.0
    steps = _ULPS * float(np.finfo(np.float64 if given.dtype == np.float64 else np.float32).eps) if centred else 0.0
    with np.errstate(invalid="ignore"):
        error = np.abs(one - other)
        near = error <= scale * (RELATIVE * size + OF_SPREAD * spread) + steps * np.abs(one)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    wrong: Bools = np.logical_not(same | (near & finite)).any(axis=1)
    numbers = error[finite & np.isfinite(other)]
    return wrong, float(numbers.max(initial=0.0))


def _from_means(values: Doubles, finite: Bools) -> Doubles:
    """Return values, (rows, columns), less the mean of the finite ones of their column."""
    counts = np.maximum(finite.sum(axis=0), 1)
    found: Doubles = values - np.where(finite, values, 0.0).sum(axis=0) / counts
    return found


def _batches(count: int) -> list[Array]:
    """Return the row numbers of each batch; the last rows make a batch of their own size."""
    return [np.arange(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]


def _answers(call: Call, holdout: Holdout, count: int, section: Model, raw: bool = False) -> Arrays:
    """Call the user's object on the first rows, batch by batch.

    Raises:
        BuildError: it raised, or gives fewer outputs than the manifest names.
    """
    names = [tensor.name for tensor in section.outputs]
    parts = []
    for places in _batches(count):
        inputs = holdout.at(places)
        if raw:
            inputs |= {name: array[places] for name, array in holdout.raw.items()}
        try:
            found = call(inputs)
        except Exception as error:
            raise BuildError(
                f"the object that model.source returns fails on rows {holdout.number(int(places[0]))} to "
                f"{holdout.number(int(places[-1]))} of the holdout: {said(error)}",
                hint="give it rows like its training rows: check order, categories and gaps",
            ) from error
        if set(names) - set(found):
            raise BuildError(
                f"the source model gives {len(found)} outputs, model.outputs names {len(names)} ({', '.join(names)})",
                hint="name every output of the model in model.outputs, in its order",
            )
        parts.append({name: found[name] for name in names})
    return _joined_by_name(parts, count)


def _joined_by_name(parts: list[Arrays], count: int) -> Arrays:
    sizes = [len(places) for places in _batches(count)]
    return {
        name: _joined([_per_row(part[name], rows) for part, rows in zip(parts, sizes, strict=True)])
        for name in parts[0]
    }


def _per_row(array: Array, rows: int) -> Array:
    return array if array.ndim and len(array) == rows else np.broadcast_to(array, (rows, *array.shape))


def _joined(parts: list[Array]) -> Array:
    """Put batches together; those whose outputs follow the padding get zeros up to the widest."""
    widest = tuple(np.max([part.shape[1:] for part in parts], axis=0).tolist()) if parts[0].ndim > 1 else ()
    return np.concatenate(
        [np.pad(part, [(0, 0), *((0, w - s) for w, s in zip(widest, part.shape[1:], strict=True))]) for part in parts]
        if widest
        else parts
    )


def _check_rounding(call: Call, own: Arrays, holdout: Holdout, count: int, section: Model) -> dict[str, object]:
    """Compare the user's object on rows as the holdout gives them and as the manifest's datatypes round them."""
    try:
        unrounded = _answers(call, holdout, count, section, raw=True)
    except BuildError:  # the object does not take the holdout's own datatypes
        return {}
    name = section.outputs[0].name
    wrong, worst = differs(unrounded[name], own[name])
    if wrong.sum() > _ROUNDED_SHARE * count:
        row = int(np.flatnonzero(wrong)[0])
        narrow = [_rounded(tensor, holdout, row) for tensor in section.inputs if tensor.name in holdout.raw]
        raise BuildError(
            f"the manifest's datatypes round the holdout's values, and {int(wrong.sum())} of {count} answers change, "
            f"by up to {worst:.3g}; the first in row {holdout.number(row)}: {'; '.join(filter(None, narrow))}",
            hint="declare a datatype that holds the values (FP64, INT64) in model.inputs",
        )
    return {"rows": int(wrong.sum()), "max_abs": worst}


def _rounded(tensor: TensorSpec, holdout: Holdout, row: int) -> str:
    """Say by how much a row's values are rounded; empty where they are not."""
    raw, typed = holdout.raw[tensor.name][row].ravel(), holdout.inputs[tensor.name][row].ravel()
    moved = np.flatnonzero(raw.astype(np.float64) != typed.astype(np.float64))
    if not moved.size:
        return ""
    largest = int(moved[np.argmax(np.abs(raw[moved].astype(np.float64)))])
    return f"input {tensor.name!r}, {tensor.datatype}: {raw[largest]!r} becomes {typed[largest]!r}"


def _different(
    tensor: TensorSpec, own: Arrays, given: Arrays, wrong: Bools, worst: float, holdout: Holdout, variant: str
) -> BuildError:
    rows = np.flatnonzero(wrong)
    shown = []
    for row in rows[:_SHOWN].tolist():
        values = ", ".join(f"{name}={_short(array[row])}" for name, array in holdout.inputs.items())
        answers = f"the object {_short(own[tensor.name][row])}, the variant {_short(given[tensor.name][row])}"
        shown.append(f"row {holdout.number(row)} ({values}): {answers}")
    return BuildError(
        f"the source variant {variant!r} gives other answers than the object that model.source returns: output "
        f"{tensor.name!r} differs in {rows.size} of {len(wrong)} holdout rows, by up to {worst:.3g}; "
        + "; ".join(shown),
        hint=_why(variant),
    )


def _why(variant: str) -> str:
    if variant == "torch":
        return (
            "the variant holds the module's state dict: keep every weight in parameters or persistent buffers, and let "
            "model.source return the same module each time"
        )
    return "check the order and the datatypes of model.inputs, and that model.source returns the same model each time"


def _short(value: Any) -> str:
    text = str(np.asarray(value).tolist())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# -- The kinds of objects ----------------------------------------------------------------------------------------------


def _table(model: Any, section: Model) -> Call:
    from tailcut.models.runtimes.sklearn import answers, table_of

    output = section.outputs[0]
    own = booster_caller(model, section)
    if own is not None:
        return lambda inputs: {output.name: own(inputs)}
    table = table_of(model, section.inputs)
    return lambda inputs: {output.name: answers(model, table(inputs), output)}


def _module(torch: Any, module: Any, section: Model) -> Call:
    names = [tensor.name for tensor in section.inputs]
    outputs = [tensor.name for tensor in section.outputs]
    ordered = in_order(module, names)

    def call(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            given = ordered(*[torch.from_numpy(np.array(inputs[name], order="C")) for name in names])
        found = tuple(given) if isinstance(given, tuple | list) else (given,)
        if not all(isinstance(each, torch.Tensor) for each in found):
            raise BuildError(f"forward of {type(module).__name__} returned {described(given)}", hint=RETURN_TENSORS)
        return {name: array.numpy() for name, array in zip(outputs, found, strict=False)}

    return call


def _session(path: Path, section: Model) -> Call:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names: Sequence[str] = [tensor.name for tensor in section.outputs]
    texts = {tensor.name for tensor in section.inputs if tensor.datatype == "BYTES"}
    known = {node.name for node in session.get_outputs()}
    if set(names) - known:
        raise BuildError(
            f"the outputs of {path} are {sorted(known)}, model.outputs names {sorted(names)}",
            hint="make model.outputs agree with the file",
        )

    def call(inputs: Arrays) -> Arrays:
        plain = {name: array.astype(str).astype(object) if name in texts else array for name, array in inputs.items()}
        return dict(zip(names, session.run(names, plain), strict=True))

    return call
