"""A request as phases: what each computes, and what it waits for."""

from __future__ import annotations

from typing import NamedTuple

from tailcut.profiler.records import Stage

HANDLING = -3
"""``Part.name`` of user code between fetches, and of what their drivers compute: that goes when they go."""


class Part(NamedTuple):
    """A phase of one request.

    Attributes:
        stage: what it is.
        name: index into ``Work.names``; -1: no span.
        cpu_ns, wait_ns: how long it computes, and how long it waits for something outside the process.
        thread: it runs in a thread of the pool for synchronous handlers, else on the event loop or in an executor.
        held: locks, connections and executors' threads that the request holds meanwhile: indices into
            ``Work.holds.found``, ascending.
        beside_ns: CPU on other cores, beginning with it, that the request does not wait for.
        full_ns: of a fetch: how long it would wait with none of its request's own beside it; ``from_ns``: from when on,
            counted from when the request was due.
        after_ns: for how long ``held`` is held once the request is done, who waits for nothing of it.
        late: it is computed once the request is done.
        loop: it runs on the event loop's own thread, where no other request's turn comes before it is over.
        blocks: so it does while it waits.
        process: it runs in a worker process of a pool: it takes a core, and not the service's interpreter. ``thread``
            and ``loop`` say where it would run without the pool.
    """

    stage: Stage
    name: int
    cpu_ns: float
    wait_ns: float
    thread: bool
    held: tuple[int, ...] = ()
    beside_ns: float = 0.0
    full_ns: float = 0.0
    after_ns: float = 0.0
    late: bool = False
    from_ns: float = 0.0
    loop: bool = False
    blocks: bool = False
    process: bool = False

    def scaled(self, *, cpu: float = 1.0, wait: float = 1.0) -> Part:
        """Scale what it computes, and what it waits for with all that follows from that."""
        return self._replace(
            cpu_ns=self.cpu_ns * cpu,
            wait_ns=self.wait_ns * wait,
            beside_ns=self.beside_ns * cpu,
            full_ns=self.full_ns * wait,
            after_ns=self.after_ns * wait,
            from_ns=self.from_ns * wait,
        )


Job = tuple[Part, ...]
