"""``tailcut init``: write a commented manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import note, write
from tailcut.cli.options import DEFAULT_MANIFEST, examples
from tailcut.errors import ManifestError

if TYPE_CHECKING:
    from tailcut.manifest.template import Filled

FILE_NAME = "tailcut.toml"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "init",
        epilog=examples(
            ("tailcut init", "write ./tailcut.toml"),
            ("tailcut init services/flight", "write services/flight/tailcut.toml"),
            ("tailcut init --from-model model.onnx", "with the tensors of the model and the limits that it proves"),
            ("tailcut init --from-model my_model:build --holdout my_model:holdout", "the same of a Python object"),
            ("tailcut init --force", "write it anew; what was there is lost"),
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
            help="Fill in the tensors of this model and the limits of their values that it proves: an .onnx file, or "
            "module:function as model.source has it.",
        ),
    ] = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Rows as the model takes them: module:function, or a .npz, .csv or .parquet file; needed with a "
            "module:function.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is already there.")] = False,
) -> None:
    """Write a commented tailcut.toml: every key with its meaning and default, required ones filled with examples.

    With --from-model the model is loaded and run on a few rows: its tensors are filled in, limits of inputs only where
    the model itself raises beyond them, and the holdout's ranges as comments.
    """
    from tailcut.manifest.template import template

    if holdout is not None and from_model is None:
        raise typer.BadParameter("--holdout needs --from-model")
    file = path / FILE_NAME if path.is_dir() or not path.suffix else path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not force:
            raise FileExistsError
        filled = _filled(from_model, holdout or "", file.parent)
        _write(file, template(filled), force)
    except FileExistsError:
        raise ManifestError(f"{file}: is there already", hint="--force overwrites it") from None
    except OSError as error:
        raise ManifestError(f"{file}: cannot be written: {error.strerror}", hint="choose another path") from None
    _say_next(file, from_model, holdout, outputs=len(filled.get("model.outputs", ())))
    write(str(file))


def _say_next(file: Path, model: str | None, holdout: str | None, outputs: int) -> None:
    flag = _manifest_flag(file)
    fill_in = ["name"]
    if model is None:
        fill_in.append("[model] with its tensors (--from-model fills them in)")
    elif not _is_onnx(model):
        fill_in.append("the outputs' names")
    if holdout is None:
        fill_in.append("[holdout] (labelled rows: a function or a file)")
    elif Path(holdout).suffix:
        fill_in.append("holdout.labels (the column of the labels)")
    if outputs > 1:
        fill_in.append("holdout.output (the output that the labels belong to; else the first)")
    note(
        "first set [slo]: p95 or p99, the latency that answers must keep, and rate, the requests per second\n"
        f"then fill in {', '.join(fill_in)}, and run: tailcut build{flag} && tailcut check{flag}"
    )
    if model is None or _is_onnx(model):
        note('an .onnx file is served as it is, without holdout and build: [serve] variant = "source"')


def _is_onnx(model: str) -> bool:
    return Path(model).suffix.lower() == ".onnx"


def _filled(model: str | None, holdout: str, folder: Path) -> Filled:
    """Return the keys of the manifest that follow from the model."""
    if model is None:
        return {}
    from tailcut.builder.describing import describe
    from tailcut.cli._limits import filled

    model, holdout = _from(model, folder), _from(holdout, folder)
    return filled(describe(model, holdout, folder), model, holdout)


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


def _manifest_flag(file: Path) -> str:
    return "" if file == DEFAULT_MANIFEST else f" --manifest {file}"
