"""``tailcut init``: write a commented manifest, with the limits that a model proves where one is named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailcut.cli.console import note, write
from tailcut.cli.options import DEFAULT_MANIFEST, examples
from tailcut.errors import ManifestError
from tailcut.manifest import TensorSpec
from tailcut.manifest.keys import to_toml
from tailcut.manifest.schema.model import LIMITS
from tailcut.manifest.template import Filled, ListElement, template

if TYPE_CHECKING:  # it brings NumPy, which --help does not need
    from tailcut.common.bounds import Bound

_MOST_PLACES = 8


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "init",
        epilog=examples(
            ("tailcut init", "write ./tailcut.toml"),
            ("tailcut init services/flight", "write services/flight/tailcut.toml"),
            ("tailcut init --from-model model.onnx", "with the model's tensors and its proven limits"),
            ("tailcut init --from-model my_model:build --holdout my_model:holdout", "the same for a Python object"),
            ("tailcut init --force", "overwrite the existing file"),
        ),
    )(init)


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="File to write, or an existing folder to write tailcut.toml in.")
    ] = DEFAULT_MANIFEST,
    from_model: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Fill in this model's tensors and the value limits that it proves: an .onnx file, or module:function "
            "as in model.source.",
        ),
    ] = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Rows for the model: module:function, or a .npz, .csv or .parquet file. Required where --from-model "
            "is module:function.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented tailcut.toml: every key with its meaning and default, required keys with examples.

    With --from-model the model is loaded and run on a few rows. Its tensors are filled in. A limit of an input is
    filled in only where the model raises beyond it.
    """
    if holdout is not None and from_model is None:
        raise typer.BadParameter("--holdout needs --from-model")
    file = path / DEFAULT_MANIFEST if path.is_dir() or not path.suffix else path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not force:
            raise FileExistsError
        filled = _filled(from_model, holdout or "", file.parent)
        _write(file, template(filled), force)
    except FileExistsError:
        raise ManifestError(f"{file} already exists", hint="overwrite it with --force, or name another file") from None
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}", hint="choose another path") from None
    _say_next(file, from_model, holdout, outputs=len(filled.get("model.outputs", ())))
    write(str(file))


def _say_next(file: Path, model: str | None, holdout: str | None, outputs: int) -> None:
    flag = "" if file == DEFAULT_MANIFEST else f" --manifest {file}"
    fill_in = ["name"]
    if model is None:
        fill_in.append("[model] with its tensors (--from-model fills them in)")
    elif not _is_onnx(model):
        fill_in.append("the outputs' names")
    if holdout is None:
        fill_in.append("[holdout] (labelled rows, from a function or a file)")
    elif Path(holdout).suffix:
        fill_in.append("holdout.labels (the label column)")
    if outputs > 1:
        fill_in.append("holdout.output (the output to judge by the labels; default: the first)")
    note(
        "first set [slo]: p95 or p99 (the latency limit) and rate (requests per second)\n"
        f"then fill in {', '.join(fill_in)}, and run: tailcut build{flag} && tailcut check{flag}"
    )
    if model is None or _is_onnx(model):
        note('to serve an .onnx file unchanged, without holdout and build: [serve] variant = "source"')


def _is_onnx(model: str) -> bool:
    return Path(model).suffix.lower() == ".onnx"


def _filled(model: str | None, holdout: str, folder: Path) -> Filled:
    """Return the keys of the manifest that follow from the model."""
    if model is None:
        return {}
    from tailcut.builder.describing import describe

    model, holdout = _from(model, folder), _from(holdout, folder)
    described = describe(model, holdout, folder)
    inputs = [_block(tensor, described.bounds) for tensor in described.inputs]
    outputs = [_block(tensor, ()) for tensor in described.outputs]
    found: dict[str, Any] = {"model.source": model, "model.inputs": inputs, "model.outputs": outputs}
    return found | ({"holdout.source": holdout} if holdout else {})


def _from(reference: str, folder: Path) -> str:
    """Return a reference as the manifest has it: paths are given from here and kept from the manifest's folder."""
    return os.path.relpath(reference, folder) if reference and Path(reference).is_file() else reference


def _write(file: Path, text: str, force: bool) -> None:
    """Write the whole file or nothing, and never over a file unless asked to."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        if force:
            scratch.replace(file)
        else:
            # A link fails where the name exists: no moment between looking and writing.
            os.link(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)


# -- Limits that a model proves ----------------------------------------------------------------------------------------


def _block(tensor: TensorSpec, bounds: Sequence[Bound]) -> ListElement:
    own = [bound for bound in bounds if bound.input == tensor.name]
    values: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    values |= {"allow_nan": True} if tensor.allow_nan else {}
    for bound in own:
        values |= _limits(bound) if not bound.columns else {}
    return ListElement(values, list(_comments(own)))


def _limits(bound: Bound) -> dict[str, Any]:
    found = {key: getattr(bound, key) for key in LIMITS}
    return {key: value for key, value in found.items() if value is not None}


def _comments(bounds: Sequence[Bound]) -> Iterator[str]:
    for bound in bounds:
        if not bound.columns:
            yield f"limits below: {bound.why}"
            continue
        # A key of a tensor is about all of its columns.
        places = [str(place) for place in bound.columns]
        more = ", ..." if len(places) > _MOST_PLACES else ""
        named = f"column {places[0]}" if len(places) == 1 else f"columns {', '.join(places[:_MOST_PLACES])}{more}"
        limits = ", ".join(f"{key} = {to_toml(value)}" for key, value in _limits(bound).items())
        yield f"{named}: {limits} ({bound.why}); found by the build, enforced in serving"
