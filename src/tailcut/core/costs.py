"""How long batches take, learned online: the base of admission, of planning and of Retry-After."""

from __future__ import annotations

from typing import NamedTuple

_FORGETTING = 0.1
"""Least weight of the newest batch: about the last twenty count."""

_OUTLIER = 3.0
"""A batch counts as at most this many times what was predicted: one hiccup must not close the door to all others."""

_KNOWN_BATCHES = 5
"""From this many batches on there is a prediction that an outlier can be measured by."""

_OUTLIER_FLOOR_NS = 1_000_000.0
"""No batch up to this long is an outlier."""

_SPREAD_ROWS2 = 0.05
"""Least variance of the batch sizes from which a slope can be told; below it the last one known stays."""

_MARGIN = 1.1
"""What is predicted for a queue is taken this much longer: an answer that is late by a little is of no use."""


class Cost(NamedTuple):
    """Predicted nanoseconds of a batch: ``base_ns + row_ns * rows``."""

    base_ns: float
    row_ns: float

    def batch_ns(self, rows: float) -> float:
        """Return the time of one batch; 0 where nothing is known."""
        return self.base_ns + self.row_ns * rows

    def drain_ns(self, rows: float, batch_rows: float) -> float:
        """Return the time of ``rows`` in batches of ``batch_rows``, one after the other."""
        full, rest = divmod(rows, batch_rows)
        return full * self.batch_ns(batch_rows) + (self.batch_ns(rest) if rest else 0.0)

    def wait_ns(self, running_ns: float, ahead_rows: int, rows: int, batch_rows: float, executors: int) -> float:
        """Return when ``rows`` that come now would be answered, from now, with a margin.

        Args:
            running_ns: what the running batches still take, summed over the executors.
            ahead_rows: rows that run first.
            batch_rows: rows of a full batch.
            executors: how many share the work.
        """
        total = ahead_rows + rows
        # Behind a backlog others come after it, so that its own batch will be full.
        own_ns = self.batch_ns(min(total, batch_rows))
        before_ns = max(self.drain_ns(total, batch_rows) - own_ns, 0.0)
        return _MARGIN * ((running_ns + before_ns) / max(executors, 1) + own_ns)


FREE = Cost(0.0, 0.0)
"""Nothing is known: every deadline that has not passed can be met."""


class CostModel:
    """A line through the durations of batches over their rows: least squares with exponential forgetting.

    Source: weighted incremental mean and covariance, T. Finch, "Incremental calculation of weighted mean and variance"
    (2009). Neither base nor slope is ever negative: more rows never take less time, and no batch takes none.
    """

    __slots__ = ("_batches", "_cost", "_covariance", "_mean_ns", "_mean_rows", "_slope_ns", "_variance")

    def __init__(self) -> None:
        self._batches = 0
        self._mean_rows = 0.0
        self._mean_ns = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._slope_ns: float | None = None
        self._cost: Cost | None = FREE

    def observe(self, rows: int, duration_ns: float) -> None:
        """Learn from one finished batch."""
        batches = self._batches = self._batches + 1
        if batches > _KNOWN_BATCHES and duration_ns > _OUTLIER_FLOOR_NS:
            limit_ns = _OUTLIER * self.cost.batch_ns(rows)
            if duration_ns > limit_ns:
                duration_ns = max(limit_ns, _OUTLIER_FLOOR_NS)
        weight = 1.0 / batches if batches < 1.0 / _FORGETTING else _FORGETTING
        off_rows = rows - self._mean_rows
        off_ns = duration_ns - self._mean_ns
        self._mean_rows += weight * off_rows
        self._mean_ns += weight * off_ns
        if off_rows:
            self._variance += weight * off_rows * off_rows
            self._covariance += weight * off_rows * off_ns
        self._variance *= 1.0 - weight
        self._covariance *= 1.0 - weight
        self._cost = None

    @property
    def cost(self) -> Cost:
        """The line as it stands; ``FREE`` before the first batch."""
        cost = self._cost
        return cost if cost is not None else self._fit()

    def _fit(self) -> Cost:
        steepest_ns = self._mean_ns / self._mean_rows
        if self._variance > _SPREAD_ROWS2:
            self._slope_ns = self._covariance / self._variance
        # As long as all batches were of one size, time is taken to be in proportion to rows.
        slope_ns = steepest_ns if self._slope_ns is None else min(max(self._slope_ns, 0.0), steepest_ns)
        cost = self._cost = Cost(self._mean_ns - slope_ns * self._mean_rows, slope_ns)
        return cost
