"""The whole matrix: every group, every form, every protocol.

    python -m tests.matrix [--jobs 2] [--only TEXT] [--pairwise] [--keep DIRECTORY] [--json FILE]

Each job is a process of its own, so that a model library that crashes costs one group. The exit code is 1 where
anything is wrong.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
from tests.matrix.axes import GROUPS, Group, pairwise
from tests.matrix.report import table
from tests.matrix.running import Finding, Result, run

_HIDDEN = "--work"


def main(arguments: Sequence[str]) -> int:
    """Run the matrix, or one job of it."""
    if arguments[:1] == [_HIDDEN]:
        return _work(int(arguments[1]), Path(arguments[2]) if len(arguments) > 2 else None)
    given = _parser().parse_args(arguments)
    groups = [group for group in (pairwise() if given.pairwise else GROUPS) if given.only in group.name]
    if not groups:
        sys.stderr.write(f"error: no group has {given.only!r} in its name, such as {GROUPS[0].name!r}\n")
        return 2
    results = sorted(_run_all(groups, given.jobs, given.keep), key=lambda each: GROUPS.index(Group(*each.group)))
    sys.stdout.write(f"{table(results)}\n")
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return 1 if any(result.wrong for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description="Compare served with own answers.")
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--only", default="", help='groups whose name has this text, such as "torch, int64"')
    parser.add_argument("--pairwise", action="store_true", help="the selection of make test")
    parser.add_argument("--keep", type=Path, help="folder in which each group's manifest and module stay")
    parser.add_argument("--json", type=Path, help="file for every finding")
    return parser


def _run_all(groups: Sequence[Group], jobs: int, keep: Path | None) -> list[Result]:
    waiting: SimpleQueue[Group] = SimpleQueue()
    for group in groups:
        waiting.put(group)
    results: list[Result] = []

    def job() -> None:
        for result in _of_one_job(waiting, keep):
            results.append(result)
            said = f"{len(result.wrong)} WRONG" if result.wrong else "right"
            sys.stderr.write(f"[{len(results)}/{len(groups)}] {result.name}: {said}\n")

    with ThreadPoolExecutor(jobs) as pool:
        for each in [pool.submit(job) for _ in range(jobs)]:
            each.result()
    return results


def _of_one_job(waiting: SimpleQueue[Group], keep: Path | None) -> Iterator[Result]:
    child: _Child | None = None
    try:
        while True:
            group = waiting.get_nowait()
            child = child or _Child(keep)
            result = child.run(group)
            if result is None:
                code = child.end()
                child = None
                why = f"crash: the process that ran it ended with code {code}"
                result = Result(
                    group=(group.model, group.values, group.labels), findings=[Finding(outcome="WRONG", why=why)]
                )
            yield result
    except Empty:
        return
    finally:
        if child is not None:
            child.end()


class _Child:
    """A process that runs groups: their numbers in, results as lines of JSON out."""

    def __init__(self, keep: Path | None) -> None:
        reads, writes = os.pipe()
        command = [sys.executable, "-m", "tests.matrix", _HIDDEN, str(writes), *([str(keep)] if keep else [])]
        # Jobs share the cores: threads of OpenMP would wait for one another most of the time.
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[writes], text=True, env=env)
        os.close(writes)
        self._results = os.fdopen(reads, "rb")

    def run(self, group: Group) -> Result | None:
        """Run a group; None where the process ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{group.place}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._results.readline()
        return msgspec.json.decode(line, type=Result) if line.endswith(b"\n") else None

    def end(self) -> int:
        """Wait for its end; the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._results.close()
        return self._process.wait()


def _work(writes: int, keep: Path | None) -> int:
    # What libraries and servers say is not for this terminal: what matters of it is in the findings.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with os.fdopen(writes, "wb") as results:
        for line in sys.stdin:
            group = GROUPS[int(line)]
            folder = keep / group.slug if keep else None
            if folder is not None:
                folder.mkdir(parents=True)
            results.write(msgspec.json.encode(run(group, folder)) + b"\n")
            results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
