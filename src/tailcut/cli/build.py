"""``tailcut build``: make the variants, judge them, keep them, promote the fastest one that was not refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import note, stderr, write
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples, load_manifest
from tailcut.errors import BuildError

if TYPE_CHECKING:
    from tailcut.build.builder import Progress

_TIME_LIMIT_S = 900.0


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "build",
        epilog=examples(
            ("tailcut build", "make every variant of ./tailcut.toml and promote the best"),
            ("tailcut build --recipes onnx", "no INT8"),
            ("tailcut build --set quality.budget.auc=0.002 --json build.json", "a tighter budget; keep the evidence"),
        ),
    )(build)


def build(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    recipes: Annotated[
        str, typer.Option(metavar="NAMES", help="Recipes to make, with commas between; the source is always there.")
    ] = "onnx,int8-dynamic",
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Limit of each step.")] = _TIME_LIMIT_S,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write version and evidence as JSON.")] = None,
) -> None:
    """Make the variants of the model, check their quality and speed, keep them in the registry, promote the best.

    A variant is refused where its quality falls by more than quality.budget, or where it is not faster here than
    the one that it was made from; the record keeps it with the reason. Each step runs in a process of its own.
    """
    import msgspec

    from tailcut.build import build as make
    from tailcut.cli._versions import print_table, refusals, summary, table

    loaded = load_manifest(manifest, settings, keep_unset=True)
    names = tuple(name.strip() for name in recipes.split(",") if name.strip())
    with _progress() as progress:
        version, promotion = make(loaded, recipes=names, step_timeout_s=time_limit, progress=progress)
    if json is not None:
        content = msgspec.json.encode({"version": version, "promotion": promotion})
        try:
            json.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
        except OSError as error:
            raise BuildError(
                f"cannot write {json}: {error.strerror}; the build itself is in the registry",
                hint="choose another file",
            ) from error
    print_table(table(version, promotion))
    for line in (*refusals(version), *summary(version)):
        write(line)
    note(f"promoted {promotion.variant!r} of {version.model} version {version.id}; next: tailcut serve")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show the running step: a spinner on a terminal, and a line per finished step everywhere."""
    console = stderr()
    with console.status("starting") as status:

        def show(what: str, state: str) -> None:
            if state == "started":
                status.update(what)
            else:
                console.print(f"{what}: {state.partition(chr(10))[0]}", markup=False)

        yield show
