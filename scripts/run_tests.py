"""Lint and all tests, or those of some paths: ``.venv/bin/python scripts/run_tests.py [PATH...]``.

    1. the code by itself, in two processes; with TEST_ALL=1, matrix and sequences too;
    2. what starts servers, builds and trains, and the libraries, simulations and documents: three files at once,
       because tests that wait for a server leave a quarter of two cores idle; lint beside them;
    3. tests marked ``quiet``, which assert a time or a rate: one by one, with nothing beside them;
    4. what failed, once more and alone. What passes now is flaky: printed, and written to test-results/flaky.txt.

All parts run, whichever fails. The exit code is 0 where everything passed, flaky tests included. With paths, their
tests run as parts 2 to 4, without lint.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "test-results"
MOST_RETRIED = 25
"""Failures beyond this many are no accidents, and are not run again."""

ALONE = ["tests/unit", "tests/property", "tests/concurrency"]
# The longest files first, so that all processes end at about the same time.
TOGETHER = ["tests/integration", "tests/matrix", "tests/sequences", "tests/libraries", "tests/simulation", "tests/docs"]
LONG = ["tests/matrix", "tests/sequences"]
"""One file each, which takes one process up to 40 minutes with TEST_ALL: their tests are split among processes."""
QUIET = ["tests/integration", "tests/gpu"]
"""No other folder may have quiet tests; see tests/conftest.py."""
SOME_FAILED, NONE_CHOSEN = 1, 5  # exit codes of pytest


class Run:
    """The parts of a run, and what came of them."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        """Tests, by their node ids."""
        self.broken: list[str] = []
        """Parts that ended without a verdict on every test."""
        self.took: list[str] = []
        self.seconds_by_file: defaultdict[str, float] = defaultdict(float)
        self.tests = 0

    def part(self, name: str, *arguments: str, processes: int = 0) -> None:
        """Run tests, in one process unless more are asked for."""
        report = RESULTS / f"{len(self.took) + 1}.xml"
        options = ["-n", str(processes), "--no-loadscope-reorder"] if processes else []
        # Threads of OpenMP spin while they wait for one another, which is long where processes share the cores.
        more = {"OMP_WAIT_POLICY": "PASSIVE"} if processes else {}
        print(f"+ pytest {' '.join([*arguments, *options])}", flush=True)
        began = time.monotonic()
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, *options, f"--junitxml={report}", "-o", "junit_family=xunit1"],
            cwd=ROOT,
            env=os.environ | more,
            check=False,
        ).returncode
        self.took.append(f"{time.monotonic() - began:.0f} s  {name}")
        failed = self._read(report) if code in (0, SOME_FAILED) else []
        if code not in (0, SOME_FAILED, NONE_CHOSEN) or (code == SOME_FAILED and not failed):
            self.broken.append(f"{name} (pytest's exit code {code})")
        self.failed += failed

    def _read(self, report: Path) -> list[str]:
        failed = []
        for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314  # written by pytest just now
            file = case.get("file") or f"{case.get('classname', '').replace('.', '/')}.py"
            self.seconds_by_file[file] += float(case.get("time", 0))
            self.tests += 1
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{file}::{case.get('name')}")
        return list(dict.fromkeys(failed))


@contextmanager
def lint(run: Run) -> Iterator[None]:
    """Lint beside the tests; print what it said once both have ended."""
    with tempfile.TemporaryFile() as output, _started("scripts/lint.sh", output) as process:
        yield
        if process.wait() != 0:
            run.broken.append("lint")
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()


@contextmanager
def _started(script: str, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([ROOT / script], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:  # Ctrl-C does not reach its session
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(paths: Sequence[str]) -> int:
    """Run the parts; return the exit code."""
    # Compiled modules are kept: every test process and every child would compile them anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir()
    run, began = Run(), time.monotonic()
    together = ["--dist", "loadfile", "-m", "not quiet"]
    if paths:
        run.part("together", *paths, *together, processes=2)
        run.part("quiet", *paths, "-m", "quiet")
    else:
        run.part("unit, property and concurrency", *ALONE, processes=2)
        whole = os.environ.get("TEST_ALL") == "1"
        if whole:
            run.part("matrix and sequences", *LONG, processes=2)
        folders = [folder for folder in TOGETHER if not (whole and folder in LONG)]
        with lint(run):
            run.part("integration, libraries, simulation, docs (and lint)", *folders, *together, processes=3)
        run.part("quiet, one by one, and what needs a GPU", *quiet_files(), "-m", "quiet", "-rEs")
    if not run.tests:
        run.broken.append(f"no test was found in {' '.join(paths) or 'tests'}")
    flaky = retry(run)
    (RESULTS / "flaky.txt").write_text("".join(f"{each}\n" for each in flaky))
    return summary(run, flaky, time.monotonic() - began)


def quiet_files() -> list[str]:
    """Return the files that say "quiet": to import the others takes several seconds."""
    files = sorted(path for folder in QUIET for path in (ROOT / folder).rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if "mark.quiet" in path.read_text(encoding="utf-8")]


def retry(run: Run) -> list[str]:
    """Run the failed tests once more, alone; return those that pass now, and leave the others in ``run.failed``."""
    first, run.failed = run.failed, []
    if not first or len(first) > MOST_RETRIED:
        run.failed = first
        return []
    chosen = RESULTS / "failed.txt"
    chosen.write_text("".join(f"{each}\n" for each in first))
    print(f"\n== once more, alone: {len(first)} that failed")
    before = run.tests
    run.part("what failed, once more", f"@{chosen}")
    if run.tests - before < len(first):  # some were not found, so nothing is known of them
        run.failed = first
    return [each for each in first if each not in run.failed]


def summary(run: Run, flaky: Sequence[str], took_s: float) -> int:
    """Print times, slowest files and verdicts; return the exit code."""
    print("\nslowest files:")
    for file, seconds in sorted(run.seconds_by_file.items(), key=lambda each: -each[1])[:10]:
        print(f"{seconds:6.0f} s  {file}")
    print(*run.took, f"{took_s:.0f} s  in all, {run.tests} tests", sep="\n")
    for each in flaky:
        print(f"flaky: {each}")
    if not flaky:
        print("flaky: none")
    for each in [*run.failed, *run.broken]:
        print(f"failed: {each}", file=sys.stderr)
    return 1 if run.failed or run.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
