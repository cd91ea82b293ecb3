"""Whether a process has its cores to itself, told from how its threads wait for them or fill them. No clock, no I/O.

A thread that wakes goes before the one that runs, unless its policy is SCHED_BATCH. Where the threads of one server
share a core that is two switches for every request and nothing won; where others compute on that core it is what keeps
an answer from waiting for the end of their time slice. So the policy is worth having exactly where nobody else is.
"""

from __future__ import annotations

_ONE_CORE, _MORE_CORES = 2.0, 0.7
"""Nanoseconds of waiting per nanosecond of computing from which on others are there.

On one core the threads of a server wait for each other: up to 1.35 was seen with nobody else, 2.6 and more beside one
busy process. On several they hardly do: up to 0.46 alone, 0.75 and more beside one busy process on one of two cores.
"""

_LITTLE = 0.02
"""Waiting for less than this share of the time harms nobody, and is seen on idle machines."""

_QUIET_LOOKS = 3
_FIRST_BREAK_S, _LONGEST_BREAK_S = 10.0, 600.0
_FORGOTTEN_S = 3600.0
"""Who has not come for an hour is taken for somebody new."""


class Contention:
    """Decides whether to give up going first. Starts with no.

    Args:
        cores: that the process may run on.
    """

    def __init__(self, cores: int) -> None:
        self._limit = _ONE_CORE if cores == 1 else _MORE_CORES
        self._quiet = 0
        self._break_s = _FIRST_BREAK_S
        self._left_s = 0.0
        self._calm_s = 0.0
        self.yields = False
        """Whether nobody else is there for whom the process would have to wait."""

    def look(self, passed_s: float, cpu_s: float, waited_s: float) -> bool:
        """Record what happened since the last look; return ``yields``.

        Args:
            passed_s: since then.
            cpu_s: that all threads computed, in sum.
            waited_s: that they waited for a core, in sum.
        """
        others = waited_s > self._limit * cpu_s and waited_s > _LITTLE * passed_s
        self._left_s = max(self._left_s - passed_s, 0.0)
        if others:
            if self.yields:
                # Who comes and goes must not cost a slow second each time.
                self._left_s, self._break_s = self._break_s, min(2 * self._break_s, _LONGEST_BREAK_S)
            self._quiet, self._calm_s, self.yields = 0, 0.0, False
        else:
            self._quiet += 1
            self._calm_s += passed_s
            if self._calm_s >= _FORGOTTEN_S:
                self._break_s = _FIRST_BREAK_S
            if self._quiet >= _QUIET_LOOKS and not self._left_s:
                self.yields = True
        return self.yields


_FULL, _NOT_FULL = 0.75, 0.6
"""Share of the cores' time from which on the process fills them, and below which it does not any more. Where there is
more time than that, an answer that waits for nothing but a core must not wait for it either."""

_LITTLE_OF_OTHERS, _MUCH_OF_OTHERS = 0.1, 0.2
"""Of a core. What ticks of the clock tell of a second is off by a few hundredths."""

_UNTOLD = 0.5
"""Part of what this process computed that is missing where the kernel (of a sandbox) does not tell the truth."""

_FULL_LOOKS = 2


class Saturation:
    """Decides the same where models run in threads of their own, for which the event loop then waits: only while all
    of them together fill the cores, when it waits for them in any case, and while nobody else computes there.

    How long threads wait tells nothing then: they wait for each other. So others are told by the time that the cores
    were busy and this process did not have.

    Args:
        cores: that the process may run on.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._looks = 0
        self.yields = False
        """Whether threads should not interrupt each other."""

    def look(self, passed_s: float, cpu_s: float, busy_s: float) -> bool:
        """Record what happened since the last look; return ``yields``.

        Args:
            passed_s: since then.
            cpu_s: that all threads computed, in sum.
            busy_s: that the cores were busy with anything, in sum.
        """
        others_s = busy_s - cpu_s
        if others_s < -_UNTOLD * cpu_s:
            self._looks, self.yields = 0, False
        elif self.yields:
            self.yields = cpu_s >= _NOT_FULL * self._cores * passed_s and others_s <= _MUCH_OF_OTHERS * passed_s
            self._looks = 0
        elif cpu_s >= _FULL * self._cores * passed_s and others_s <= _LITTLE_OF_OTHERS * passed_s:
            self._looks += 1
            self.yields = self._looks >= _FULL_LOOKS
        else:
            self._looks = 0
        return self.yields
