"""``tailcut init``: write a commented manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli.console import note, write
from tailcut.cli.options import DEFAULT_MANIFEST, examples
from tailcut.errors import ManifestError

FILE_NAME = "tailcut.toml"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "init",
        epilog=examples(
            ("tailcut init", "write ./tailcut.toml"),
            ("tailcut init services/flight", "write services/flight/tailcut.toml"),
            ("tailcut init --force", "write it anew; what was there is lost"),
        ),
    )(init)


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="File to write, or an existing folder to write tailcut.toml in.")
    ] = DEFAULT_MANIFEST,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is already there.")] = False,
) -> None:
    """Write a commented tailcut.toml: every key with its meaning and default, required ones filled with examples."""
    from tailcut.manifest.template import template

    file = path / FILE_NAME if path.is_dir() or not path.suffix else path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, template(), force)
    except FileExistsError:
        raise ManifestError(f"{file}: is there already", hint="--force overwrites it") from None
    except OSError as error:
        raise ManifestError(f"{file}: cannot be written: {error.strerror}", hint="choose another path") from None
    flag = _manifest_flag(file)
    note(
        "fill in name, [model], the tensors and [holdout] (labelled rows: a function or a file), then run: "
        f"tailcut build{flag} && tailcut check{flag}\n"
        'an .onnx file is served as it is, without holdout and build: [serve] variant = "source"'
    )
    write(str(file))


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
