"""Stores a fitted scikit-learn estimator with skops, and checks that what is stored answers as the user's object does.

skops names the parts of its archive by memory addresses and random numbers. They are numbered here, in the order of the
description, so that the same estimator gives the same bytes, and a second build of it the same version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from tailcut.builder.calling import said
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import TailcutError
from tailcut.models.runtimes.sklearn import write_probes
from tailcut.models.runtimes.skops import PROBES, load, load_skops
from tailcut.models.runtimes.skops_types import OwnTypes, reference_of, unknown_types

_SCHEMA = "schema.json"
_VALUES = frozenset({"JsonNode", "TypeNode", "FunctionNode", "TupleNode"})
"""Nodes of values that never change: Python may keep equal ones once or twice, and neither is of consequence."""

Answers = Callable[[Any], Array]


def store(model: Any, probes: Arrays, answers: Answers, artifact: Path, own: OwnTypes) -> tuple[list[str], str]:
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
    artifact.write_bytes(_numbered(content, {PROBES: _probes(probes, expected)}))
    try:
        given = answers(load(artifact, own))
    except Exception as error:
        return [], f"the file written by skops cannot be used: {said(error)}"
    if given.shape != expected.shape or not np.array_equal(given, expected, equal_nan=given.dtype.kind == "f"):
        return [], "the file written by skops gives other answers than the estimator on holdout rows"
    return [reference_of(name) for name in names if name in own], ""


def _probes(rows: Arrays, answered: Array) -> bytes:
    count = len(next(iter(rows.values())))
    file = BytesIO()
    write_probes(file, rows, answered[:count])
    return file.getvalue()


def _numbered(content: bytes, more: dict[str, bytes]) -> bytes:
    """Return the archive with its parts numbered, in a fixed order and without dates; ``more`` is added."""
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
