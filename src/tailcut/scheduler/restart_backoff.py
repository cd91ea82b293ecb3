"""When a pool may open its next executor, and when that will be there: told the time, without a clock."""

from __future__ import annotations

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
"""Between attempts: at once after the first death, then longer, because a model that crashes at every batch would
otherwise do nothing but load."""

_PROVEN_S = 60.0
"""An executor that lived this long did not die of its start: the next pause is the first again."""

_SLACK = 0.2
"""Loading is expected to take so much longer than the last times; and once it has, so much of what it took already."""

_QUICKER = 0.5
"""Weight of a loading that was quicker than expected; a slower one is believed at once."""


class RestartBackoff:
    """Learns how long opening takes, and paces attempts. Owned by one pool.

    Args:
        load_s: how long opening an executor took at the start.

    Attributes:
        load_s: how long it is expected to take.
        pause_s: before the next attempt, after a death or a failed one.
    """

    def __init__(self, load_s: float) -> None:
        self.load_s = load_s
        self.pause_s = 0.0
        self._after_s = float("-inf")
        self._began_s: float | None = None
        self._fails = False

    def may(self, now_s: float) -> bool:
        """Whether an executor may be opened now."""
        return now_s >= self._after_s

    def began(self, now_s: float) -> None:
        """One is being opened."""
        self._began_s = now_s

    def ended(self, now_s: float) -> None:
        """It is open."""
        if self._began_s is not None:
            took_s = now_s - self._began_s
            self.load_s = max(took_s, self.load_s + _QUICKER * (took_s - self.load_s))
        self._began_s, self._fails = None, False

    def failed(self, now_s: float) -> None:
        """It could not be opened."""
        self._began_s, self._fails = None, True
        self._lengthen()
        self._after_s = now_s + self.pause_s

    def lost(self, now_s: float, lived_s: float) -> None:
        """An executor died ``lived_s`` after it was opened."""
        if lived_s >= _PROVEN_S:
            self.pause_s = 0.0
        self._after_s = now_s + self.pause_s
        self._lengthen()

    def left_s(self, now_s: float) -> float | None:
        """Return in how many seconds the next one is expected; None where the last attempt failed: nobody knows."""
        if self._fails:
            return None
        expected_s = (1.0 + _SLACK) * self.load_s
        if self._began_s is None:
            return max(self._after_s - now_s, 0.0) + expected_s
        passed_s = now_s - self._began_s
        return max(expected_s - passed_s, _SLACK * passed_s)

    def retry_s(self, now_s: float) -> float:
        """Return after how many seconds it is worth asking again, whatever is known."""
        left_s = self.left_s(now_s)
        return left_s if left_s is not None else max(self._after_s - now_s, 0.0) + self.load_s

    def _lengthen(self) -> None:
        self.pause_s = min(max(2 * self.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
