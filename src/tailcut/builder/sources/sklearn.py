"""Source "sklearn": a scikit-learn estimator or pipeline, stored with skops where it holds no unknown types.

Of others nothing is stored but rows and what it answered to them: see ``runtimes.sklearn``. scikit-learn's own format
is pickle, and loading that runs code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.calling import said
from tailcut.builder.recipes.base import Result
from tailcut.builder.sources import _tables
from tailcut.builder.sources.base import SourceKind, SourceWork
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError, BuildError, TailcutError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.live import own_types
from tailcut.models.runtimes.sklearn import write_probes
from tailcut.models.runtimes.skops import PROBES, OwnTypes, load, load_skops, reference_of, unknown_types
from tailcut.registry.evidence import RecipeEvidence

_COMPARED_ROWS = 4096
"""Rows on which the stored estimator must give the same bits as the user's object."""


class SklearnSource(SourceKind):
    """A callable that gives a fitted estimator or pipeline."""

    kind = "sklearn"
    variant = "sklearn"
    runtime = "sklearn"
    suffix = ".skops"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class: a scikit-learn estimator exists only where scikit-learn is imported."""
        base = sys.modules.get("sklearn.base")
        return base is not None and isinstance(model, base.BaseEstimator)

    def trees(self, model: Any) -> bool:
        """By the class of the estimator, or of the pipeline's last step."""
        return ensembles.is_trees(_tables.final(model))

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the estimator; where it cannot be stored, probe rows of the selection split and their answers.

        Raises:
            BuildError: not fitted, no probabilities or predictions, categories that no request can bring, or other
                tensors than the manifest's.
        """
        from tailcut.models.runtimes.sklearn import PROBE_ROWS, answers, table_of, write_probes

        _tables.check_fitted(work.model)
        model = work.manifest.deployment.model
        _check_model(work.model, model.inputs)
        classes = _tables.classes(work.model)
        try:
            table = table_of(work.model, model.inputs)
        except ArtifactError as error:
            raise BuildError(error.message, hint=error.hint) from error
        rows = work.selection.take(min(PROBE_ROWS, work.selection.rows))
        try:
            answered = answers(work.model, table(rows), model.outputs[0])
        except Exception as error:
            raise _fails(work.model, rows, error) from error
        compared = table(work.selection.take(min(_COMPARED_ROWS, work.selection.rows)))
        code, why_not = store(
            work.model,
            rows,
            lambda estimator: answers(estimator, compared, model.outputs[0]),
            artifact,
            own_types(work.manifest),
        )
        if why_not:
            with artifact.open("wb") as file:
                write_probes(file, rows, answered)
        runtime = self.runtime if why_not else "skops"
        return Result(
            {
                "estimator": type(_tables.final(work.model)).__name__,
                "probe_rows": len(answered),
            },
            evidence=RecipeEvidence(classes=classes, not_stored=why_not),
            runtime=runtime,
            code=tuple(code),
        )


def _fails(model: Any, rows: Arrays, error: Exception) -> BuildError:
    given = {name: f"{array.dtype} {list(array.shape)}" for name, array in rows.items()}
    return BuildError(
        f"the {type(model).__name__} fails on rows of the holdout, {given}: "
        f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        hint="an estimator that keeps the columns' names (feature_names_in_) gets a DataFrame with the inputs' names "
        "(or columns) and datatypes; another gets model.inputs side by side in one array. A first step of your own "
        "that needs a DataFrame must set self.feature_names_in_ = X.columns.to_numpy() in fit",
    )


def _check_model(model: Any, inputs: Sequence[TensorSpec]) -> None:
    _tables.check_categories(_tables.final(model))
    _tables.check_missing_texts(model, inputs)
    name = type(_tables.final(model)).__name__
    if hasattr(model, "classes_") and not hasattr(model, "predict_proba"):
        raise BuildError(
            f"the {name} has no predict_proba, so its answers are classes without probabilities",
            hint="wrap it: sklearn.calibration.CalibratedClassifierCV(...), or use a classifier with probabilities",
        )
    if not hasattr(model, "predict") or getattr(model, "_estimator_type", None) in {"clusterer", "outlier_detector"}:
        raise BuildError(
            f"the {name} is neither a classifier nor a regressor", hint="end the pipeline with one, or export to ONNX"
        )


# -- Storing with skops ------------------------------------------------------------------------------------------------


_SCHEMA = "schema.json"
_VALUES = frozenset({"JsonNode", "TypeNode", "FunctionNode", "TupleNode"})
"""Nodes of values that never change: Python may keep equal ones once or twice, and neither is of consequence."""


def store(
    model: Any, probes: Arrays, answers: Callable[[Any], Array], artifact: Path, own: OwnTypes
) -> tuple[list[str], str]:
    """Write an estimator.

    Args:
        model: fitted.
        probes: rows that are kept with it, and the answers to them.
        answers: runs an estimator on rows of the holdout.
        artifact: the file to write.
        own: types that the manifest trusts.

    Returns:
        the references of ``own`` that it holds, and why it cannot be stored; empty where it was.
    """
    try:
        skops = load_skops()
    except TailcutError as error:
        return [], f"{error.message}; {error.hint}, then build again"
    try:
        content = skops.dumps(model)
        names = skops.get_untrusted_types(data=content)
    except Exception as error:  # skops raises whatever the state of a type makes it raise
        return [], f"skops cannot write it: {said(error)}"
    if unknown := unknown_types(names, own):
        listed = ", ".join(map(reference_of, unknown))
        return [], f"it holds {listed}; to store it, name your own types in model.trusted"
    expected = answers(model)
    kept = BytesIO()
    write_probes(kept, probes, expected[: len(next(iter(probes.values())))])
    artifact.write_bytes(_numbered(content, {PROBES: kept.getvalue()}))
    try:
        given = answers(load(artifact, own))
    except Exception as error:
        return [], f"the file written by skops cannot be used: {said(error)}"
    if given.shape != expected.shape or not np.array_equal(given, expected, equal_nan=given.dtype.kind == "f"):
        return [], "the file written by skops gives other answers than the estimator on holdout rows"
    return [reference_of(name) for name in names if name in own], ""


def _numbered(content: bytes, more: dict[str, bytes]) -> bytes:
    """Return the archive with its parts numbered, in a fixed order and without dates; ``more`` is added.

    skops names the parts by memory addresses and random numbers. So the same estimator gives the same bytes, and a
    second build of it the same version.
    """
    file = BytesIO()
    with ZipFile(BytesIO(content)) as given, ZipFile(file, "w", ZIP_DEFLATED) as made:
        schema = _sorted(json.loads(given.read(_SCHEMA)))
        numbers: dict[object, int] = {}
        names: dict[str, str] = {}
        for node in _nodes(schema):
            if "__id__" in node:
                node["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
            if "file" in node:
                name = node["file"]
                node["file"] = names.setdefault(name, f"{len(names)}{Path(name).suffix}")
        for old, new in names.items():
            made.writestr(_member(new), _without_padding(given.read(old)) if new.endswith(".npy") else given.read(old))
        for name, data in {_SCHEMA: json.dumps(schema).encode(), **more}.items():
            made.writestr(_member(name), data)
    return file.getvalue()


def _without_padding(content: bytes) -> bytes:
    """Return an .npy file with zeros between the fields of its records: trees leave there what the memory held."""
    array = np.load(BytesIO(content), allow_pickle=False)
    if array.dtype.names is None:
        return content
    made = np.zeros(array.shape, array.dtype)
    for name in array.dtype.names:
        made[name] = array[name]
    file = BytesIO()
    np.save(file, made, allow_pickle=False)
    return file.getvalue()


def _member(name: str) -> ZipInfo:
    found = ZipInfo(name)
    found.compress_type = ZIP_DEFLATED
    return found


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a description, parents first."""
    if isinstance(tree, dict):
        if "__loader__" in tree:
            yield tree
        for each in tree.values():
            yield from _nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _sorted(schema: Any) -> Any:
    """Drop the identity of plain values, and order sets, whose own order is another in each process."""
    for node in _nodes(schema):
        if node["__loader__"] in _VALUES:
            node.pop("__id__", None)
    for node in _nodes(schema):
        if node["__loader__"] == "SetNode":
            node["content"].sort(key=json.dumps)
    return schema
