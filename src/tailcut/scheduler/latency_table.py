"""Predicted batch times: a table by size, 1, 2, 4, ... rows, times one speed factor that all sizes share.

The speed is learned and forgotten within some twenty batches, and at once where batches agree that it changed. The
table changes slowly: the fewer batches of a size have run, the more of an error is the size's. Each is a weighted mean
of logarithms, with a variance that says how much the next error counts.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from math import exp, log, sqrt

_UNKNOWN, _KIND, _KIND_STEP, _STEP = 4.0, 0.1, 0.015, 0.06
"""Variances. Of a size that has never run. Where the table is of rows of another length: of the speed, and of a size
for each doubling of rows (a third, and an eighth). Of a size for each doubling of rows where the table proved wrong."""

_SPEED, _SHAPE = 0.0025, 2e-6
"""Variance that each batch adds. To the speed, as a part of the noise: the last twenty batches count. To each size: a
tenth more or less within five thousand."""

_DEAR, _LATER = 0.3, 1e-3
"""A size whose last batch took so much longer may have met a hiccup. Its variance grows by so much with each batch, so
that a size which seems twice as dear as it is runs again within some five hundred."""

_FASTER, _SLOW, _USUAL, _RESTLESS = 4.0, 0.15, 5e-5, 0.5
"""No hiccup makes a batch faster. If the machine is slower than usual by more than ``_SLOW``, one batch that is faster
by so many times the noise says that it has recovered. The speed stays uncertain for a few batches, in case it has not.
What lasts for twenty thousand batches becomes usual."""

_NOISE, _LEAST_NOISE, _MOST_NOISE, _LEARNS_NOISE, _SIGMAS = 0.0025, 0.0012, 0.04, 0.02, 3.0
"""Variance of one batch: a twentieth at first, and from a thirtieth to a fifth. An error counts as at most three times
its standard deviation: one hiccup says little."""

_RUN, _NEWS, _WRONG = 3, 0.05, 1.0
"""Three errors in a row of one sign, each larger than the noise and five percent, are a change. If each is a factor of
three, the table is wrong as well."""


_FOLLOWS = 100
"""What sizes that run have in common is shared by those that do not: half of it by one that last ran so many batches
ago. In a slow spell the speed rises, and later the sizes that run are corrected downwards. A size that does not run
would keep the higher speed and rise with each spell."""


@dataclass(slots=True)
class SizeTime:
    """The logarithm of a size's time in nanoseconds at speed 0, its variance, and how many batches of it have run.

    ``ran_at`` is the number of its last batch.
    """

    log: float
    variance: float = _UNKNOWN
    growth: float = _SHAPE
    count: int = 0
    ran_at: int = 0


class LatencyTable:
    """Learns the times of batches of one kind; ``sizes`` holds those known, by the power of two of their rows."""

    def __init__(self) -> None:
        self.sizes: dict[int, SizeTime] = {}
        self._noise = self._variance = _NOISE
        self._speed = self._slow = self._restless = 0.0
        self._last = self._batches = 0
        self._errors: dict[int, list[float]] = {}

    def distrust(self, octaves: float) -> None:
        """Doubt all times: they are of rows of another kind, so many times twice as long, or half."""
        self._variance, self._last = _KIND, 0
        for power, size in self.sizes.items():
            size.variance, size.count = _KIND_STEP * max(octaves, 1.0) ** 2 * power, 0

    @property
    def points(self) -> list[float]:
        """Expected times of 1, 2, 4, ... rows."""
        known = self._known()
        return [_on_line(known, 1 << power) for power in range(max(self.sizes, default=-1) + 1)]

    @property
    def variances(self) -> list[float]:
        """Variance of the logarithm of each point, the speed aside."""
        sizes = range(max(self.sizes, default=-1) + 1)
        return [self.sizes[at].variance if at in self.sizes else _UNKNOWN for at in sizes]

    @property
    def doubts(self) -> list[float]:
        """Part of each point, one standard deviation, by which it may be less; 0 for the size that ran last."""
        return [0.0 if at == self._last else 1.0 - exp(-sqrt(each)) for at, each in enumerate(self.variances)]

    def expected_ns(self, rows: int) -> float:
        """Return the time on a straight line between the nearest known sizes; beyond the largest, in proportion."""
        return _on_line(self._known(), rows)

    def _known(self) -> list[tuple[int, float]]:
        """Return rows and expected times of the known sizes, ascending, from (0, 0.0) on."""
        return [(0, 0.0), *sorted((1 << at, exp(size.log + self._speed)) for at, size in self.sizes.items())]

    def learn(self, rows: int, duration_ns: float) -> float:
        """Learn from a batch; return how many times longer than expected it took."""
        at, noise = nearest(rows), self._noise
        if at not in self.sizes:
            guess_ns = self.expected_ns(1 << at) if self.sizes else duration_ns / rows * (1 << at)
            self.sizes[at] = SizeTime(log(guess_ns) - self._speed)
        size, ratio = self.sizes[at], duration_ns / self.expected_ns(rows)
        error, known = log(ratio), size.count > 0
        if known:
            self._age(at, error)
        total = self._variance + size.variance + noise
        most = max(_SIGMAS * sqrt(max(total - self._restless, noise)), sqrt(self._restless) + _SIGMAS * sqrt(noise))
        cut = min(max(error, -most), most)
        faster = cut * self._variance / total
        self._speed += faster
        self._variance *= 1.0 - self._variance / total
        self._batches += 1
        own = cut * size.variance / total
        rests = {power: self._rests(other) for power, other in self.sizes.items() if power != at}
        shared = own / (1.0 + len(rests) - sum(rests.values())) if known else 0.0
        for power, other in self.sizes.items():
            if power == at or (power > at and not known and not other.count):  # larger guesses follow the first batch
                other.log += own
            else:
                other.log += shared * rests[power]
        told = 1.0 if known or not error else cut / error  # what is cut from a first error is left to the second
        size.variance *= 1.0 - told * size.variance / total
        if known:
            self._slow = max(self._slow + faster, 0.0) * (1.0 - _USUAL)
            learned = noise + _LEARNS_NOISE * (min(error**2, _SIGMAS**2 * noise) - noise)
            self._noise = min(max(learned, _LEAST_NOISE), _MOST_NOISE)
        size.growth = _LATER if error > max(_DEAR, _SIGMAS * sqrt(noise)) else _SHAPE
        size.count, size.ran_at, self._last = size.count + 1, self._batches, at
        return ratio

    def _rests(self, size: SizeTime) -> float:
        """Return how far a size follows those that run, near 0 for the one that ran last, up to 1."""
        passed = self._batches - size.ran_at
        return passed / (passed + _FOLLOWS)

    def _age(self, at: int, error: float) -> None:
        """Add to the variances what may have changed since the last batch."""
        beyond = _FASTER * sqrt(self._noise)
        self._restless *= _RESTLESS
        if self._slow > _SLOW and -max(self._slow + beyond, _WRONG) < error < -beyond:
            self._restless = min(self._slow, -error) ** 2
        news, own = self._news(-1, error), self._news(at, error)
        self._variance += _SPEED * self._noise + self._restless + news**2
        self.sizes[at].variance += 0.0 if news else own**2
        for power, size in self.sizes.items():
            size.variance += size.growth + (_STEP * power if news > _WRONG else 0.0)

    def _news(self, key: int, error: float) -> float:
        """Return the least of the last errors, of one size or (-1) of all, where they agree that something changed."""
        errors = self._errors[key] = [*self._errors.get(key, [0.0] * _RUN)[1:], error]
        least = max(min(errors), -max(errors))
        return least if least > max(_NEWS, sqrt(self._noise)) else 0.0


def _on_line(known: list[tuple[int, float]], rows: int) -> float:
    above = bisect(known, (rows, 0.0))
    (less, less_ns), (more, more_ns) = known[above - 1 : above + 1] if above < len(known) else (known[0], known[-1])
    return less_ns + (more_ns - less_ns) * (rows - less) / (more - less)


def nearest(rows: int) -> int:
    """Return the power of the size 1, 2, 4, ... that is nearest to ``rows``; halfway, of the larger."""
    return (4 * rows // 3).bit_length() - 1
