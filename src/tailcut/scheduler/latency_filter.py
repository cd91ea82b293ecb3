"""What batches of each size are expected to take, and how sure that is: a Kalman filter over the sizes 1, 2, 4, ...

The state is the logarithm of what each of these sizes takes. A machine's speed moves all of them alike, so that what is
seen of one size is news of the others as well; a model's shape moves each of them alone, and hardly ever. Which of the
two it was that an error shows follows from what is known: of a size that has run a hundred times, an error says that
the machine is slower; of one that has never run, that the size is dearer than was guessed. What is not told apart then
stays in the covariance, and with it how much cheaper than it seems a size may be.

Source: R. E. Kalman, "A New Approach to Linear Filtering and Prediction Problems", J. Basic Eng. 82(1), 1960; errors
are cut as in P. J. Huber, "Robust Estimation of a Location Parameter", Ann. Math. Stat. 35(1), 1964.
"""

from __future__ import annotations

from math import exp, log, sqrt

from tailcut.scheduler.latency_shift import ODD, LatencyShift

_ANY = 4.0
"""Variance of what nothing is known of."""

_STEP = 0.06
"""Variance of twice the size over twice the time, before either has run or where what is expected proved to be wrong: a
quarter more or less."""

_KIND, _KIND_STEP = 0.1, 0.015
"""The same of points that rows of another kind gave: a third more or less all together, an eighth from size to size for
each time that they are twice as long. (From texts of 8 tokens to such of 128 what four rows take by the row rose four
times as much as what one takes: shapes differ more than those of neighbours.)"""

_SPEED = 0.01
"""Variance that the machine's speed gains with every batch, as part of the noise of one: about the last ten count, and
far fewer where their errors do not cancel out. (From 0.0025 to 0.04 as much is done, in simulation.)"""

_FASTER, _SWING, _USUAL = 4.0, 0.15, 5e-5
"""No hiccup makes a batch faster. Where the machine lately became slower by more than the second of these, and a batch
is faster than expected by more than so many times the noise, who shared the cores may have left: the speed is as
uncertain then as what it had changed by. A twenty thousandth of that is taken for usual with every batch. (Without,
lone rows that were the first to run again seemed to be all that is cheap: they ran one by one through twelve seconds of
bursts, and others were refused, because batches still seemed to cost twice as much.)"""

_RESTLESS = 0.5
"""What remains of that with every batch: those who left may be back. It widens what an error counts at most by as much
as the speed may have changed, and not three times as much."""

_SHAPE = 2e-6
"""Variance that each size gains with every batch: a tenth more or less within five thousand."""

_DEAR, _LATER = 0.3, 1e-3
"""Where a size that has not just run is dearer by more than that than it seemed, it may have been a hiccup: until
another batch of it says the same, it gains so much variance with every batch. One that seems twice as dear as it is
runs again within some five hundred."""

_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.0025, 0.0004, 0.04
_LEARNS_NOISE = 0.02
"""Variance of one batch over what was expected: a twentieth at first, and from a fiftieth to a fifth."""

_SIGMAS = 3.0
"""An error counts as at most so many times what was to be expected: one hiccup says little."""


class LatencyFilter:
    """Learns what batches of one kind take, in nanoseconds; see the module's text.

    Sizes between two powers of two lie on a straight line between them. A size is known of from ``reach`` on, and has
    been met once a batch of it, or of one beside it, was learned from. What is expected is the mean of the logarithms,
    errors cut: a little less than the mean where some batches take far longer than others.

    """

    __slots__ = (
        "_dear", "_drift", "_drifts", "_last", "_logs", "_met", "_noise", "_restless",
        "_swing", "_variances",
    )  # fmt: skip

    def __init__(self) -> None:
        self._logs: list[float] = []
        self._variances: list[list[float]] = []
        self._noise = _NOISE
        self._last = 0
        self._drift = LatencyShift()
        self._swing = self._restless = 0.0
        self._drifts: list[LatencyShift] = []
        self._dear: list[bool] = []
        self._met: list[bool] = []

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def knows_lone_rows(self) -> bool:
        """Whether a batch of one row was learned from, be it of another kind."""
        return bool(self._met) and self._met[0]

    @property
    def largest_ns(self) -> float:
        """What is expected of the largest size."""
        return exp(self._logs[-1])

    @property
    def points(self) -> list[float]:
        """What is expected of 1, 2, 4, ... rows."""
        return [exp(each) for each in self._logs]

    @property
    def doubts(self) -> list[float]:
        """By how much less each size may take than is expected: one standard deviation, as part of it.

        Measured by the size that ran last: a speed that is uncertain says nothing of which size is cheaper.
        """
        return [1.0 - exp(-sqrt(max(self._apart(at), 0.0))) for at in range(len(self._logs))]

    @property
    def variances(self) -> list[float]:
        """Of the logarithm of each size's time."""
        return [row[at] for at, row in enumerate(self._variances)]

    def distrust(self, octaves: float) -> None:
        """Doubt all that is known: it was of rows of another kind, so many times twice as long, or half."""
        sizes = range(len(self._logs))
        step = _KIND_STEP * max(octaves, 1.0) ** 2
        self._variances = [[min(_KIND + step * min(one, other), _ANY) for other in sizes] for one in sizes]
        self._last = 0

    def settle(self) -> None:
        """Forget which direction the last errors had: they say nothing of the next ones."""
        self._drift, self._swing, self._restless = LatencyShift(), 0.0, 0.0
        self._drifts = [LatencyShift() for _ in self._logs]

    def reach(self, rows: int, row_ns: float) -> None:
        """Know of sizes up to ``rows``: as much by the row as the largest so far, or as ``row_ns``."""
        logs, variances = self._logs, self._variances
        while 1 << max(len(logs) - 1, 0) < rows or not logs:
            logs.append(logs[-1] + log(2.0) if logs else log(row_ns))
            if variances:
                for row in variances:
                    row.append(row[-1])
                *others, largest = variances[-1]
                variances.append([*others, largest + _STEP])
            else:
                variances.append([_ANY])
            self._drifts.append(LatencyShift())
            self._dear.append(False)
            self._met.append(False)

    def expected_ns(self, rows: int) -> float:
        """Return what is expected of a size that is known of: on a straight line between two points."""
        place, share = _place(rows)
        lower_ns = exp(self._logs[place])
        return lower_ns + share * (exp(self._logs[place + 1]) - lower_ns) if share else lower_ns

    def learn(self, rows: int, ratio: float, *, known: bool, odd: bool = False, wrong: bool = False) -> None:
        """Take in a batch.

        Args:
            rows: of a size that is known of.
            ratio: what it took over what was expected of it.
            known: whether its size has run before: else its error says nothing of the noise.
            odd: whether it was so far off that it says nothing of the machine's speed yet, unless that may be back.
            wrong: whether the last ones all were so far off: then what is expected is wrong.
        """
        error = log(ratio)
        at, beside = nearest(rows), {rows.bit_length() - 1, (rows - 1).bit_length()}
        back = self._back(error, odd=odd) if known else 0.0
        doubt = self._restless + back
        self._move(at, error, back, odd=odd, wrong=wrong)
        for place in beside:
            if not self._met[place]:
                self._variances[place][place] += _ANY  # it was hardly more than a guess
            self._met[place] = True
        gains, sure = self._gains(rows)
        noise, fresh = self._noise, at != self._last or not known
        total = sure + noise
        most = max(_SIGMAS * sqrt(max(total - doubt, noise)), sqrt(doubt) + _SIGMAS * sqrt(noise), ODD)
        cut = error if wrong else min(max(error, -most), most)
        by = cut / total
        if known:
            self._swing = max(self._swing + by * max(min(gains), 0.0), 0.0) * (1.0 - _USUAL)
        self._logs = [each + by * gain for each, gain in zip(self._logs, gains, strict=True)]
        for gain, row in zip(gains, self._variances, strict=True):
            part = gain / total
            row[:] = [each - part * other for each, other in zip(row, gains, strict=True)]
        if known:
            seen = min(error * error, _SIGMAS**2 * noise)
            self._noise = min(max(noise + _LEARNS_NOISE * (seen - noise), _LEAST_NOISE), _MOST_NOISE)
        self._last = at
        if not all(self._met):
            self._guess()
        self._dear[at] = fresh and error > max(_DEAR, _SIGMAS * sqrt(noise))

    def _guess(self) -> None:
        """Set what is expected of sizes that never ran: between two that did on a straight line, else by the row."""
        logs = self._logs
        known = [at for at, met in enumerate(self._met) if met]
        for at, met in enumerate(self._met):
            if met:
                continue
            above = next((place for place in known if place > at), None)
            below = next((place for place in reversed(known) if place < at), None)
            if above is None or below is None:
                end = above if above is not None else below
                assert end is not None
                logs[at] = logs[end] + (at - end) * log(2.0)
            else:
                part = ((1 << at) - (1 << below)) / ((1 << above) - (1 << below))
                logs[at] = log(exp(logs[below]) * (1.0 - part) + exp(logs[above]) * part)

    def _move(self, at: int, error: float, back: float, *, odd: bool, wrong: bool) -> None:
        """Let time pass: the speed may have changed, by much where the last errors have one direction.

        How far a guess was off says nothing of that.

        Args:
            back: see ``_back``.
        """
        met = self._met[at]
        news, own_news = met and self._drift.has_news(error), met and self._drifts[at].has_news(error)
        speed, own = _SPEED * self._noise + self._restless, 0.0
        self._restless = max(_RESTLESS * self._restless, back)
        if wrong:
            speed = max(speed, error * error)
            for one, row in enumerate(self._variances):
                row[:] = [each + _STEP * min(one, other) for other, each in enumerate(row)]
        elif not odd and news:
            speed += self._drift.mean**2
        elif not odd and own_news:
            own = self._drifts[at].mean ** 2
        speed += back
        for place, row in enumerate(self._variances):
            row[:] = [each + speed for each in row]
            row[place] += _LATER if self._dear[place] else _SHAPE
        self._variances[at][at] += own

    def _back(self, error: float, *, odd: bool) -> float:
        """Return what variance the speed gains with a batch so fast that it may be what it was before a slow spell."""
        beyond = _FASTER * sqrt(self._noise)
        if self._swing <= _SWING or error >= -beyond or (odd and -error >= self._swing + beyond):
            return 0.0
        return float(min(self._swing, -error) ** 2)

    def _apart(self, at: int) -> float:
        """Return the variance of a size over that of the one that ran last."""
        row, last = self._variances[at], self._last
        return row[at] + self._variances[last][last] - 2 * row[last]

    def _gains(self, rows: int) -> tuple[list[float], float]:
        """Return the covariance of each size with one of ``rows``, and the variance of that."""
        place, share = _place(rows)
        lower = self._variances[place]
        if not share:
            return list(lower), lower[place]
        upper = self._variances[place + 1]
        # Between two points their times add up, not the logarithms of them: each weighs as much as it takes.
        above_ns, below_ns = exp(self._logs[place + 1]) * share, exp(self._logs[place]) * (1.0 - share)
        above = above_ns / (above_ns + below_ns)
        gains = [(1.0 - above) * one + above * other for one, other in zip(lower, upper, strict=True)]
        return gains, (1.0 - above) * gains[place] + above * gains[place + 1]


def nearest(rows: int) -> int:
    """Return which of the sizes 1, 2, 4, ... a size is counted as: of two the nearer, between them the larger."""
    place, share = _place(rows)
    return place if share < 0.5 else place + 1


def _place(rows: int) -> tuple[int, float]:
    """Return which of the sizes is the next smaller, or the same, and how far it is on the way to the next larger."""
    place = rows.bit_length() - 1
    return place, rows / (1 << place) - 1.0
