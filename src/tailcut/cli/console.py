"""What every command shares: exit codes, where text goes, and how an error looks.

Data goes to stdout, all else to stderr. Rich honours NO_COLOR and leaves colours out where nobody looks.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tailcut.common.extras import EXTRA_OF_MODULE, install
from tailcut.errors import (
    BuildError,
    LoadTestError,
    ManifestError,
    MissingExtra,
    ProfileError,
    StartError,
    TailcutError,
)
from tailcut.report.document import Document
from tailcut.report.files import write_json
from tailcut.report.html import html
from tailcut.system.atomic_files import write_file


class ExitCode(IntEnum):
    """Exit codes of ``tailcut``; scripts may rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_STARTED = 3
    MISSING = 4
    BUG = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # 128 + SIGINT


EXIT_REASONS: dict[ExitCode, str] = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "the command ran with a negative result: SLO missed, variant refused or not built, answers "
    "differ, a stage grew",
    ExitCode.USAGE: "the command line or the manifest is wrong; nothing ran",
    ExitCode.NOT_STARTED: "start failed: port in use, artifact corrupt, model does not load, target not reachable",
    ExitCode.MISSING: "an optional package is not installed; the hint shows the install command",
    ExitCode.BUG: "an unexpected exception, in tailcut or in a hook",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


@contextmanager
def usage(flag: str = "") -> Iterator[None]:
    """Let what is wrong with a flag, or a file that it names, end as a wrong command line (exit code 2)."""
    try:
        yield
    except (LoadTestError, ProfileError) as error:
        raise ManifestError(f"{flag}: {error.message}" if flag else error.message, hint=error.hint) from error


def check_files(*paths: Path | None) -> None:
    """Refuse before the work what could not be written after it.

    Raises:
        LoadTestError: which file, and why.
    """
    from tailcut.load.files import prepare

    for path in paths:
        if path is not None:
            prepare(path)


def save_json(value: object, path: Path | None) -> None:
    """Write a result as JSON where a file is named for it.

    Raises:
        LoadTestError: it cannot be written.
    """
    if path is not None:
        write_json(path, value)
        note(f"wrote {path}")


def save_page(document: Document, path: Path | None) -> None:
    """Write a result as an HTML page where a file is named for it.

    Raises:
        LoadTestError: it cannot be written.
    """
    if path is not None:
        write_file(path, html(document).encode())
        note(f"wrote {path}")


def stdout() -> Console:
    """A console for data. Made anew, so that it writes to the ``sys.stdout`` of this moment."""
    return Console(soft_wrap=True, highlight=False)


def stderr() -> Console:
    """A console for progress, notes and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def write(text: str) -> None:
    """Write data to stdout, as it is, with a line end. It is no error if the reader has closed the pipe.

    Raises:
        StartError: stdout cannot be written, as where a disk is full.
    """
    with _stdout():
        sys.stdout.write(f"{text}\n")


def flush() -> None:
    """Write out what waits for stdout; see ``write``."""
    with _stdout():
        sys.stdout.flush()


@contextmanager
def _stdout() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python writes what is left at its end, and would exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise StartError(
                f"the output cannot be written: {error.strerror}", hint="free space, or redirect it to another place"
            ) from error


def note(text: str) -> None:
    """Tell the person something, on stderr, as it is, with a line end."""
    sys.stderr.write(f"{text}\n")


def print_error(message: str, hint: str = "") -> None:
    """Print ``error: ...`` and, after a blank line, ``hint: ...`` on stderr."""
    console = stderr()
    console.print(Text.assemble(("error", "bold red"), f": {message}"))
    if hint:
        console.print()
        console.print(Text.assemble(("hint", "bold cyan"), f": {hint}"))


def report(error: BaseException, *, debug: bool) -> ExitCode:
    """Print what went wrong and say how to exit.

    Args:
        error: what a command raised.
        debug: print the traceback too.
    """
    if debug:
        sys.stderr.write("".join(traceback.format_exception(error)) + "\n")
    if isinstance(error, TailcutError):
        print_error(error.explained, error.hint)
        return exit_code(error)
    if isinstance(error, ModuleNotFoundError) and (module := (error.name or "").partition(".")[0]) in EXTRA_OF_MODULE:
        print_error(f"the package {module} is not installed", install(module))
        return ExitCode.MISSING
    last = traceback.format_exception_only(error)[-1].strip()
    hint = "" if debug else "run again with --debug for the traceback; please report a bug in tailcut"
    print_error(f"unexpected {last}", hint)
    return ExitCode.BUG


def exit_code(error: TailcutError) -> ExitCode:
    """The exit code of an error: who runs tailcut in a script must be able to tell a "no" from "could not"."""
    codes = {ManifestError: ExitCode.USAGE, MissingExtra: ExitCode.MISSING, BuildError: ExitCode.FAILED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.NOT_STARTED)
