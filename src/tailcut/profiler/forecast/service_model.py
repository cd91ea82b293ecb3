"""What requests go through, and how a request is laid out for it: to be played (``queueing``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique


@unique
class At(IntEnum):
    """Where a phase takes its time."""

    NOWHERE = 0
    """Waiting: as many at once as there are."""
    PYTHON = 1
    """The interpreter: one at a time per process."""
    MODEL = 2
    """An executor: one batch at a time each."""
    DATABASE = 5
    """A database's core."""
    BESIDE = 6
    """A core, from then on, while the request goes on without waiting for it."""
    WORKER = 8
    """A worker process of the service's own pool: a core, without the interpreter."""
    TAKE = 3
    """Takes one of what only so many may hold (its number in the place of a time), waits where all are taken."""
    GIVE = 4
    """Gives it back."""
    ANSWERED = 7
    """It is answered; what follows is done beside it, and nobody waits for that."""


Phase = tuple[At, float]
"""Where, and nanoseconds; for TAKE and GIVE what: 0 is a thread of the pool, others count as ``ServiceModel.held``,
and after those comes an event loop: each process has one."""
THREAD = 0


@dataclass(frozen=True, kw_only=True)
class ServiceModel:
    """What requests go through.

    Attributes:
        processes: interpreters.
        executors: that run models; 0: models take the interpreter's time (one core for all, or on the event loop). What
            waits for it together is then one batch, where there is batching.
        cores: that interpreters and executors share; 0: each has one of its own.
        database: cores that answer queries; 0: as many as are asked for.
        beside: the database takes its turns on the service's cores too, where those are free first.
        database_share: of a query's waiting that the database computes; the rest takes no core.
        threads: of the pool for synchronous handlers; 0: as many as are asked for.
        held: how many at once may hold each lock, semaphore or connection pool; they count from 1.
        batch_share: of a model's time that a batch of any size takes once; the rest is per row. 0: no batching.
        max_rows: of a batch.
        loops: what runs on an event loop's thread is played in turn: some hold it for long.
    """

    processes: int = 1
    executors: int = 0
    cores: int = 0
    database: int = 0
    beside: bool = False
    database_share: float = 1.0
    threads: int = 0
    held: tuple[int, ...] = ()
    batch_share: float = 0.0
    max_rows: int = 32
    loops: bool = False

    @property
    def has_database(self) -> bool:
        """Whether queries wait for the cores that compute them."""
        return self.database > 0 or self.beside
