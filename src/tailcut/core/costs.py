"""How fast the executors work, learned online: the base of Retry-After."""

from __future__ import annotations

_FORGETTING = 0.1
"""Weight of the newest batch: about the last twenty batches count."""


class Throughput:
    """Nanoseconds of executor time per row, as an exponentially weighted mean over batches."""

    __slots__ = ("ns_per_row",)

    def __init__(self) -> None:
        self.ns_per_row = 0.0

    def observe(self, rows: int, duration_ns: int) -> None:
        """Learn from one finished batch."""
        sample = duration_ns / rows
        if self.ns_per_row == 0.0:
            self.ns_per_row = sample
        else:
            self.ns_per_row += _FORGETTING * (sample - self.ns_per_row)

    def drain_s(self, rows: int, executors: int) -> float:
        """Return the seconds that ``executors`` need for ``rows`` waiting rows at the learned speed."""
        return rows * self.ns_per_row / max(executors, 1) / 1e9
