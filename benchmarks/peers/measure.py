"""Start every server that can be started, and measure them in turns."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import wrk
from benchmarks.peers.bodies import Shape, body_of, first_number
from benchmarks.peers.catalog import Peer, Task, free_port
from benchmarks.peers.environments import NotInstalled, ensure, versions
from benchmarks.peers.processes import NotUp, Server

CONNECTIONS = (32, 1)
_WARM_S, _FIRST_WARM_S = 1, 5
"""Of load that is not counted: before each measurement, and before a server's first, in which it learns what it can."""


@dataclass
class Contender:
    """A peer whose server is up, or why it is not."""

    peer: Peer
    server: Server | None = None
    url: str = ""
    script: Path = Path()
    failure: str = ""
    version: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def started(
    peers: Sequence[Peer], task: Task, shape: Shape, expected: float | None, folder: Path, *, install: bool = True
) -> Iterator[list[Contender]]:
    """Start the peers, each frozen once it has answered rightly; stop all of them at the end.

    Args:
        expected: first number of the model's output; None where that is not looked at. A no-op has none.
        install: see ``environments.ensure``.
    """
    # Ended by a signal, this process would leave its servers behind, frozen ones for good.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    contenders: list[Contender] = []
    try:
        for peer in peers:
            contender = Contender(peer)
            contenders.append(contender)
            _start(contender, task, shape, expected, folder, install)
            sys.stderr.write(f"{peer.name}: {contender.failure or 'up'}\n")
        yield contenders
    finally:
        with ExitStack() as stack:  # all of them, even where one does not end
            for contender in contenders:
                if contender.server is not None:
                    stack.callback(contender.server.stop)


def _start(contender: Contender, task: Task, shape: Shape, expected: float | None, folder: Path, install: bool) -> None:
    peer = contender.peer
    try:
        python = ensure(peer, install=install)
        contender.version = versions(python, [peer.package])[peer.package]
    except NotInstalled as error:
        contender.failure = f"not installed: {error}"
        return
    port = free_port()
    body, headers = body_of(peer.form, shape)
    contender.url = f"http://127.0.0.1:{port}{peer.path.format(name=task.name)}"
    contender.script = wrk.write_script(folder / f"{port}.lua", body, headers)
    log = folder / f"{port}.log"
    command = peer.command(python, port, task, folder)
    server = contender.server = Server(command, peer.environ(task), contender.url, body, headers, log)
    try:
        answer = server.wait_up()
        seen = first_number(answer, peer.form)
        told = None if peer.name.startswith("no-op") else expected
        if told is not None and not np.isclose(seen, told, rtol=1e-3, atol=1e-4):
            raise NotUp(f"it answered {answer[:120]!r}, the model says {told:g}")
        server.freeze()
    except NotUp as error:
        contender.failure = f"not measured: {error}"
        server.stop()
        contender.server = None


def measure(contenders: Sequence[Contender], rounds: int, seconds: int, after_round: Any = None) -> None:
    """Measure those that are up, each round in another order, with all others frozen; fills ``rounds`` of each.

    Args:
        after_round: called with the number of each finished round.
    """
    draw = random.Random(1)
    running = [each for each in contenders if each.server is not None]
    for number in range(rounds):
        for contender in draw.sample(running, len(running)):
            contender.rounds.append(_turn(contender, seconds))
        if after_round is not None:
            after_round(number)


def _turn(contender: Contender, seconds: int) -> dict[str, Any]:
    assert contender.server is not None
    contender.server.thaw()
    try:
        wrk.run(contender.url, contender.script, max(CONNECTIONS), _WARM_S if contender.rounds else _FIRST_WARM_S)
        return {str(count): wrk.run(contender.url, contender.script, count, seconds) for count in CONNECTIONS}
    except (RuntimeError, subprocess.SubprocessError) as error:
        return {"failure": str(error)}
    finally:
        contender.server.freeze()
