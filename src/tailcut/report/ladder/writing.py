"""Write every report of a ladder beside its file."""

from __future__ import annotations

from pathlib import Path

from tailcut.errors import LoadTestError, MissingExtra
from tailcut.report.ladder.file import LadderRecord
from tailcut.report.ladder.html import render_html
from tailcut.report.ladder.png import write_png
from tailcut.report.ladder.text import render_markdown


def write_reports(ladder: LadderRecord, folder: Path) -> tuple[list[Path], str]:
    """Write ladder.md, ladder.html and ladder.png.

    Args:
        ladder: what was measured.
        folder: where to.

    Returns:
        the files written, and why the picture is missing where it is (no matplotlib).

    Raises:
        LoadTestError: the folder is not writable.
    """
    written = [folder / "ladder.md", folder / "ladder.html"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written[0].write_text(render_markdown(ladder), encoding="utf-8")
        written[1].write_text(render_html(ladder), encoding="utf-8")
        write_png(ladder, folder / "ladder.png")
    except MissingExtra as error:
        return written, str(error.message)
    except OSError as error:
        raise LoadTestError(f"cannot write to {folder}: {error.strerror}", hint="choose a writable folder") from error
    return [*written, folder / "ladder.png"], ""
