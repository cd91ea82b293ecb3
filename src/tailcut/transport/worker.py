"""A worker process: loads, drains and stops the models of a host."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from tailcut.errors import TailcutError
from tailcut.manifest.host import HostManifest
from tailcut.models.runtimes.floats import confine_to_models
from tailcut.models.runtimes.onnxruntime import flush_subnormals
from tailcut.protocol.app import Application
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.middleware import Middleware
from tailcut.serving.host import Host
from tailcut.transport.supervisor import STOP

if TYPE_CHECKING:
    from tailcut.transport.grpc.server import GRPCServer


log = logging.getLogger("tailcut.server")

EXIT_START_FAILED = 3
"""The worker's exit code where the deployment could not be loaded; the supervisor passes it on."""

_GC_THRESHOLDS = (10_000, 20, 50)
"""Requests make no cycles in the common case, so the collector looks less often than Python's 700 allocations."""

_PARENT_CHECK_S = 1.0


class Worker:
    """A host on an event loop. It loads in the background, so that health answers meanwhile.

    Args:
        guard: of the server, made before this process was forked.
        url: that clients connect to, as people are told.
        address: the IP address of gRPC's port.

    Attributes:
        server: the settings of the server.
        host: the models.
        handle: answers one request.
        arrivals: to be told of requests that are about to be handled.
        is_draining: whether clients are to be told to connect anew, elsewhere.
        on_drain: called when that begins.
    """

    def __init__(self, manifest: HostManifest, guard: Guard, url: str, address: str, supervisor_pid: int) -> None:
        self.server = manifest.server
        self._url = url
        self._address = address
        self.host = Host(manifest)
        try:
            self.host.observed.begin(in_application=False)
        except TailcutError as error:
            fail(str(error))
        self._plane = DataPlane(self.host, guard)
        self._middleware = Middleware(Application(self._plane).handle, manifest)
        self.handle = self._middleware.handle
        self.arrivals = self.host.arrivals
        self.is_draining = False
        self.on_drain: Callable[[], None] = _ignore
        self._supervisor_pid = supervisor_pid
        self._loading: asyncio.Task[None] | None = None
        self._grpc: GRPCServer | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take up signals and load, on the event loop that will serve."""
        loop.add_signal_handler(signal.SIGUSR1, self._drain)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        # They reach the whole process group; the supervisor decides when this process stops.
        for number in (signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, _ignore)
        # onnxruntime does it for the thread that opens the first session; this one also reads and writes numbers.
        flush_subnormals()
        confine_to_models()
        self._loading = loop.create_task(self._load())
        self._watch_parent(loop)
        if self.server.scheduling == "batch":
            run_as_batch()

    async def end(self) -> None:
        """Stop, once no request is open any more."""
        if self._grpc is not None:
            # Half of what is left until the kill: requests that were begun are answered, connections told to go.
            await self._grpc.stop(max(float(self.server.kill_s) - float(self.server.drain_s), 0.2) / 2)
        await self.host.stop(timeout_s=1.0)
        self._middleware.close()

    def _watch_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop when the supervisor was killed: nobody could stop this process any more, and it holds the port."""
        if os.getppid() != self._supervisor_pid:
            os.kill(os.getpid(), STOP)
        else:
            loop.call_later(_PARENT_CHECK_S, self._watch_parent, loop)

    def _on_sigterm(self) -> None:
        """Drain, and leave the stop to the supervisor, which may not have got the signal itself."""
        if not self.is_draining and os.getppid() == self._supervisor_pid:
            os.kill(self._supervisor_pid, signal.SIGUSR2)
        self._drain()

    def _drain(self) -> None:
        self.is_draining = True
        self.on_drain()
        self.host.drain()

    async def _load(self) -> None:
        try:
            self.host.where = f" on {self._url}"
            if port := self.server.grpc_port:  # from before the models are loaded
                from tailcut.transport.grpc.server import GRPCServer

                self._grpc = GRPCServer(self._plane, self._address, port, self._middleware.log)
                await self._grpc.start()
                self.host.where += f" and for gRPC on port {self._grpc.port}"
            await self.host.start()
        except TailcutError as error:
            fail(str(error))
        except Exception:
            log.exception("no model could be loaded")
            os._exit(EXIT_START_FAILED)
        # What loading left behind lives as long as the process: keep the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        if self._plane.guard.leaves_management_open:
            log.warning(
                "server.tokens is set but server.management_tokens is not: every process on this machine may load and "
                "unload models; set it to a file of tokens (docs/how-to/secure.md)"
            )


def _ignore() -> None:
    """Do nothing."""


def fail(message: str) -> NoReturn:
    """End the worker at once: its start failed, nothing was served, and the supervisor must not exit with 0."""
    log.critical("%s", message)
    os._exit(EXIT_START_FAILED)


# -- Threads -----------------------------------------------------------------------------------------------------------


# SCHED_BATCH for all threads of the server: one that wakes waits until the other has nothing left to do.
#
# Source: sched(7), "SCHED_BATCH".

_TASKS = "/proc/self/task"


def run_as_batch() -> None:
    """Set the policy of all threads of this process, also those that Python did not begin.

    A policy that somebody gave the process or a thread (chrt, systemd) stays; threads begin with that of the one that
    begins them.
    """
    with suppress(OSError):
        for task in map(int, os.listdir(_TASKS)):
            with suppress(OSError):  # it has ended, or this is not allowed here
                if os.sched_getscheduler(task) == os.SCHED_OTHER:
                    os.sched_setscheduler(task, os.SCHED_BATCH, os.sched_param(0))
