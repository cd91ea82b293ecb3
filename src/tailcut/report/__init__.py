"""One result file -> text, Markdown, HTML, PNG."""

from tailcut.report.ladder.file import LadderRecord, load_ladder, save_ladder
from tailcut.report.ladder.html import render_html
from tailcut.report.ladder.text import render_markdown, render_terminal
from tailcut.report.ladder.writing import write_reports

__all__ = [
    "LadderRecord",
    "load_ladder",
    "render_html",
    "render_markdown",
    "render_terminal",
    "save_ladder",
    "write_reports",
]
