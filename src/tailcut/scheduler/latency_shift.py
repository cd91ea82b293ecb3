"""Whether errors of what batches were expected to take cancel out, or are news."""

from __future__ import annotations

_TREND = 0.2
_NEWS = 0.9
_NOISE = 0.05
"""Errors do not cancel out where their mean is almost as large as they are: of the last ten batches, nine were off in
one direction. Below five percent that is no news."""

ODD, _ODDER = 0.1, 3.0
"""What an error is beyond a tenth, or so many times the mean error, is one batch's own affair."""


class LatencyShift:
    """Whether what is expected is off in one direction: of all sizes together, or of one."""

    __slots__ = ("_error", "_mean")

    def __init__(self) -> None:
        self._mean = self._error = 0.0

    @property
    def mean(self) -> float:
        """How far off the last batches were on average."""
        return self._mean

    def has_news(self, off: float) -> bool:
        """Take in how far off a batch was; return whether the last ones do not cancel out."""
        most = max(_ODDER * self._error, ODD)
        off = min(max(off, -most), most)
        self._mean += _TREND * (off - self._mean)
        self._error += _TREND * (abs(off) - self._error)
        return abs(self._mean) > _NEWS * self._error and abs(self._mean) > _NOISE
