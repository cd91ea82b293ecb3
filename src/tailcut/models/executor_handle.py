"""What a pool knows of each of its executors, and whether there is room for one more beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tailcut.models.executors.in_process import Executor
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.system.machine import free_bytes

_FREE_SHARE = 0.8
"""Of the memory that is free, what another executor may take: others allocate too while it loads."""


@dataclass(eq=False)
class ExecutorHandle:
    """One executor and what is known of it.

    ``warm_bytes`` is what its process held when it was warm; 0 where it has none of its own.
    """

    executor: Executor
    runtime: Runtime
    opened_s: float
    warm_bytes: int = 0
    requests: int = 0

    @property
    def growth(self) -> float:
        """Of its memory since it was warm, as a share."""
        if self.warm_bytes and isinstance(self.runtime, RemoteRuntime):
            return self.runtime.resident_bytes / self.warm_bytes - 1.0
        return 0.0


def has_room(handle: ExecutorHandle, size_bytes: int) -> bool:
    """Whether another executor like this one fits into memory beside it.

    Args:
        size_bytes: what its runtime is taken to hold, where no process of its own tells.
    """
    free = free_bytes()
    return free is None or max(handle.warm_bytes, size_bytes) <= _FREE_SHARE * free
