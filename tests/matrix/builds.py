"""Builds of a group in this process: the whole of ``tailcut build`` but its load rounds, its race and its tuning."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.matrix import objects, tables
from tests.matrix.axes import Group

from tailcut.builder import build as build_all
from tailcut.builder import builder
from tailcut.builder.children import StepRunner
from tailcut.builder.records import Spec
from tailcut.builder.steps import CONFIRMATION_FILE, STEPS
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Manifest, load
from tailcut.manifest.keys import to_toml
from tailcut.registry import Version
from tailcut.registry.evidence import Choice, Race

_CODE = """
from tests.matrix import builds, objects
from tests.matrix.axes import Group

GROUP = Group({model!r}, {values!r}, {labels!r})


def build():
    return objects.object_of(GROUP)


def holdout():
    return builds.holdout(GROUP, as_they_are={as_they_are})
"""


@dataclass
class Built:
    """What came of a build.

    Attributes:
        variants: names of the variants that were made.
        refusals: why others were not, by name; of the whole build under "build".
        crashes: what steps raised that is no error of tailcut's, by step; a real build tells them as errors.
        judged: metrics of the source variant in the evidence.
        confirmation: row numbers of the holdout that it was judged on.
    """

    variants: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)
    judged: dict[str, float] = field(default_factory=dict)
    confirmation: list[int] = field(default_factory=list)


def holdout(group: Group, *, as_they_are: bool) -> Any:
    """Make the holdout as the user's own function does.

    Args:
        as_they_are: whether the labels are not encoded, whatever the model takes.
    """
    from tailcut.builder import Holdout

    table = tables.holdout(group)
    columns = table.columns
    # Names decide which column is which, so their order is another one than the manifest's.
    inputs = {"x": np.column_stack(list(columns.values()))} if group.one_tensor else dict(reversed(columns.items()))
    encoded = group.model == "xgboost" and not group.knows_classes and not as_they_are
    return Holdout(inputs=inputs, labels=table.codes if encoded else table.labels)


def write(group: Group, folder: Path, *, declared: bool = True) -> None:
    """Write the group's manifest and module, from which ``tailcut build`` and ``tailcut serve`` work by hand too.

    Args:
        declared: whether labels that the model does not know are encoded, or named in ``holdout.classes``.
    """
    source = objects.save(group, folder)
    code = _CODE.format(model=group.model, values=group.values, labels=group.labels, as_they_are=not declared)
    (folder / f"{group.slug}.py").write_text(code, encoding="utf-8")
    held: dict[str, Any] = {"source": f"{group.slug}:holdout"}
    if declared and not group.knows_classes and group.model != "xgboost":
        held["classes"] = list(group.classes)
    shape = [-1] if group.width == 1 else [-1, group.width]
    plain: dict[str, Any] = {
        "name": "m",
        "model": {
            "source": source,
            "inputs": _inputs(group),
            "outputs": [{"name": "p", "datatype": group.output, "shape": shape}],
        },
        "holdout": held,
        "quality": {"budget": {"accuracy": 0.05} if group.classes else {"mae": 0.05}},
        "slo": {"timeout": "20s"},
        "server": {"kill": "60s"},
        "pool": {"executors": 1},
    }
    text = "".join(f"{key} = {to_toml(value)}\n" for key, value in plain.items())
    (folder / "tailcut.toml").write_text(text, encoding="utf-8")


def _inputs(group: Group) -> list[dict[str, Any]]:
    types, missing = tables.datatypes(group), tables.may_be_missing(group)
    if group.one_tensor:
        datatype = next(iter(types.values()))
        whole = {"name": "x", "datatype": datatype, "shape": [-1, len(types)], "columns": list(types)}
        return [{**whole, "allow_nan": bool(missing)}]
    tensors = [{"name": name, "datatype": datatype, "allow_nan": name in missing} for name, datatype in types.items()]
    # A DataFrame has names: the manifest's order is another one than that of the fit.
    return tensors[::-1] if group.on_frame else tensors


def read(folder: Path, *settings: str) -> Manifest:
    """Read the group's manifest.

    Raises:
        TailcutError: it is refused.
    """
    return load(folder, environment={}, overrides=settings)


def build(folder: Path) -> Built:
    """Build the source variant and the portable one; where that ends the build, the source variant alone.

    Raises:
        Exception: a crash of the build itself; those of its steps are in ``crashes``.
    """
    found = Built()
    try:
        return _read(found, _build(found, folder, "onnx"))
    except TailcutError as error:
        found.refusals["build"] = said(error)
    alone = next((name for name in _SOURCES if f"--recipes {name}`" in found.refusals["build"]), "")
    if not alone:
        return found
    found.refusals["onnx"] = found.refusals.pop("build")
    try:
        return _read(found, _build(found, folder, alone))
    except TailcutError as error:
        found.refusals["build"] = said(error)
    return found


_SOURCES = ("lightgbm", "xgboost", "sklearn", "torch")


def said(error: TailcutError) -> str:
    """Return an error as its reader sees it."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _read(found: Built, version: Version) -> Built:
    found.variants = [name for name, each in version.variants.items() if each.sha256]
    judged = {name: each.refused for name, each in version.variants.items() if name in ("onnx", version.source)}
    # Of two builds the first knows best why there is no ONNX variant.
    found.refusals = {name: refused for name, refused in judged.items() if name not in found.variants} | found.refusals
    found.judged = dict(version.variants[version.source].evidence.metrics)
    return found


def _build(found: Built, folder: Path, recipe: str) -> Version:
    with _unmeasured(found), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of the libraries: a build shows what its child processes write only in crashes
        return build_all(read(folder, f'build.recipes=["{recipe}"]'))[0]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "tailcut" in frame.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno} in {last.name})"


@contextmanager
def _unmeasured(found: Built) -> Iterator[None]:
    """Do the build's steps in this process, and leave out those that measure time: no answer depends on them."""

    def step(_: StepRunner, spec: Spec, *__: object, **___: object) -> object:
        try:
            given = STEPS[spec.step].run(spec)
        except TailcutError:
            raise
        except Exception as error:  # a child process turns it into an error as well
            found.crashes.append(f"{spec.title}: {_place(error)}")
            raise BuildError(f"{spec.title} raised {type(error).__name__}: {error}") from error
        if spec.step == "holdout":
            with np.load(Path(spec.folder) / CONFIRMATION_FILE) as kept:
                found.confirmation = kept["numbers"].tolist()
        return given

    def choose(running: builder.Building) -> tuple[Choice, None]:
        return Choice(variant=running.source, why="nothing was measured", meets_slo=False), None

    with (
        patch.object(StepRunner, "run", step),
        patch.object(builder, "_race", lambda running: Race()),
        patch.object(builder, "_judge_speed", choose),
        patch.object(builder.Building, "tune_all", lambda self: None),
    ):
        yield
