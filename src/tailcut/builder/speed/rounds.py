"""Rounds of load until every verdict is decided: which variants are measured next, and what the rounds so far show.

A variant leaves once its verdict is decided and the choice no longer depends on it, or once it can no longer win. Every
variant that is measured has a part in each round, so that any two share the rounds in which both were there. Without a
server and without a clock of its own: see ``speed`` for both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tailcut.builder.speed import verdicts
from tailcut.builder.speed.interleaving import turn
from tailcut.builder.speed.pairs import UNSEEN, Standing, look
from tailcut.builder.speed.verdicts import CHEAPER, ERROR, MARGIN
from tailcut.common.slo import LatencyObjective
from tailcut.errors import TailcutError
from tailcut.gate.sequential import LEAST, Interval, schedule
from tailcut.manifest import CostSettings as Prices
from tailcut.registry.evidence import (
    PASSED,
    Choice,
    Cost,
    LoadSummary,
    LoadTrial,
    Round,
    SpeedOutcome,
    SpeedVerdict,
)

_HOPE = 0.5
"""Part of its interval that a variant may be better than it seems, before it is given up."""

_LOOKS_TO_HOPE = 2
"""Before a variant is given up: one look says too little of how the rounds spread."""


class Entrant(NamedTuple):
    """A variant in the rounds.

    Attributes:
        reference: the variant that it must beat; empty for the source.
        refused: whether its quality refuses it already: it is shown with the rounds up to the first look.
    """

    name: str
    reference: str = ""
    refused: bool = False


class RoundTerms(NamedTuple):
    """What the rounds are judged by: ``rounds`` is their largest number, ``errors`` a share of requests."""

    slo: LatencyObjective
    rate: float
    errors: float
    rounds: int
    prices: Prices = Prices()


class Rounds:
    """The rounds of load of a build."""

    def __init__(self, entrants: Sequence[Entrant], terms: RoundTerms) -> None:
        self.terms = terms
        self.played = 0
        self.left_s = math.inf
        self.took_s = 0.0
        self._entrants = entrants
        self._references = {each.name: each.reference for each in entrants if each.reference}
        self._plan = schedule(terms.rounds, ERROR)
        self._found: dict[str, dict[int, Round]] = {each.name: {} for each in entrants}
        self._failed: dict[str, str] = {}
        self._missed: set[str] = set()
        self._standings: dict[tuple[str, str], Standing] = {}
        self._decided: dict[str, tuple[SpeedOutcome, Standing]] = {}
        self._stopped: dict[str, str] = {}  # why a variant that is not decided is measured no longer

    # -- Measured ------------------------------------------------------------------------------------------------

    def add(self, name: str, found: Round) -> None:
        """Take in one variant's part of the round under way."""
        self._found[name][found.number] = found

    def fail(self, name: str, why: str) -> None:
        """Take a variant out that cannot be measured."""
        self._failed.setdefault(name, why)

    def miss(self, name: str, why: str) -> None:
        """Note a round in which a variant could not be measured; the second such round takes it out."""
        if name in self._missed:
            self.fail(name, why)
        self._missed.add(name)

    def due(self) -> list[str]:
        """Name the variants that the next round measures; none where nothing is left to be decided."""
        alive = [each.name for each in self._entrants if each.name not in self._failed]
        if self.played < LEAST:
            return alive
        if self.played >= self.terms.rounds:
            return []
        opened = self.open()
        # What others are compared with comes first: their verdicts say little while its own is open, and a round of
        # two variants takes a fraction of one of all.
        first = [name for name in opened if name in {self._references[other] for other in opened}]
        wanted = {*(first or opened), *(self._references[name] for name in first or opened)}
        if not first and not self._is_settled():
            wanted.update(self._left())
        return [name for name in alive if name in wanted]

    def open(self) -> list[str]:
        """Name the variants whose verdict is open, and that may still be promoted."""
        return [name for name in self._contenders() if name in self._references and name not in self._decided]

    def look(self, affordable: int) -> None:
        """Judge the rounds after one more was played.

        Args:
            affordable: rounds in all that there is time for.
        """
        self.played += 1
        self._look(self._contenders())
        for name in self.open():
            if cheaper := self._beaten_by(name):
                self._stopped[name] = f"left out of further rounds, because {cheaper} costs less and meets the SLO"
            elif self._is_hopeless(name, min(affordable, self.terms.rounds)):
                standing = self._standing(name, self._references[name])
                if standing.latency.middle > verdicts.target(standing.cpu):
                    self._decided[name] = "no", standing
                else:
                    self._stopped[name] = "the remaining rounds would not prove it (build.rounds, build.load_limit)"

    def close(self, why: str) -> None:
        """Judge what is open with the rounds that there are.

        Args:
            why: there are no more rounds.
        """
        self._look([each.name for each in self._entrants if each.name not in self._stopped], last=True)
        for name in self._references:
            self._stopped.setdefault(name, why)

    def _look(self, names: Collection[str], *, last: bool = False) -> None:
        names = [name for name in names if self._found[name] and not self._is_failed(name)]
        for name in names:
            reference = self._references.get(name, "")
            for other in {"", *names, reference} - {name}:
                theirs = self._found[other] if other else self.terms.slo.limit_s * 1e3
                before = self._standing(name, other)
                self._standings[name, other] = look(before, self._found[name], theirs, self._plan, last=last)
            if reference and name not in self._decided:
                standing = self._standing(name, reference)
                found = verdicts.outcome(standing.latency, standing.cpu)
                if found != "open":
                    self._decided[name] = found, standing

    # -- Decided -------------------------------------------------------------------------------------------------

    def trial(self, name: str) -> LoadTrial:
        """Return one variant's rounds."""
        if name in self._failed:
            return LoadTrial(failed=self._failed[name])
        return LoadTrial(rounds=list(self._found[name].values()))

    def summary(self) -> LoadSummary:
        """Return how many rounds there were, how long they took, and how many cores others had in the median."""
        others = [each.others for found in self._found.values() for each in found.values()]
        return LoadSummary(rounds=self.played, took_s=self.took_s, others=statistics.median(others) if others else 0.0)

    def verdict(self, name: str) -> SpeedVerdict | None:
        """Return what the rounds say of one variant; None where it or its reference could not be measured."""
        reference = self._references.get(name, name)
        if self._is_failed(name) or not self._found[name] or not self._found[reference]:
            return None
        decided, standing = self._decided.get(name, ("open", self._standing(name, reference)))
        beside = self._seen(name, reference, standing.latency) if reference != name else Interval(0.0, 0.0, 0.0)
        limit_ms = self.terms.slo.limit_s * 1e3
        cpu = standing.cpu if reference != name else None
        middle, low, high = verdicts.ratio_of(self._seen(name, "", self._standing(name).latency))
        return SpeedVerdict(
            reference=reference,
            percentile=self.terms.slo.name,
            latency_ms=(middle * limit_ms, low * limit_ms, high * limit_ms),
            ratio=verdicts.ratio_of(beside),
            cpu_ratio=None if cpu is None or math.isnan(cpu.middle) else verdicts.ratio_of(cpu),
            outcome=decided if reference != name else "no",
            meets_slo=self._meets_slo(name),
            errors=self._errors(name),
            fails=self._fails_more(name),
            rounds=standing.rounds or len(self._found[name]),
            left_out=standing.left_out,
            stopped=self._stopped.get(name, "") if decided == "open" else "",
        )

    def _seen(self, name: str, other: str, latency: Interval) -> Interval:
        """Return the interval with a middle: of a variant that left before any look, the ratio of the medians."""
        if not math.isnan(latency.middle):
            return latency
        theirs_ms = self._median_ms(other) if other else self.terms.slo.limit_s * 1e3
        return latency._replace(middle=math.log(self._median_ms(name) / theirs_ms))

    def _median_ms(self, name: str) -> float:
        return statistics.median(each.latency_ms for each in self._found[name].values())

    def price(self, name: str, prices: Prices | None = None) -> Cost:
        """Price a million requests of one variant; see ``verdicts.cost``."""
        found, prices = self._found[name].values(), prices or self.terms.prices
        held_ms = [each.gpu_ms for each in found if each.gpu_ms is not None]
        gpu_ms = statistics.fmean(held_ms) if held_ms else None
        return verdicts.cost(
            [each.cpu_ms for each in found], gpu_ms, prices.core_hour, prices.gpu_hour, prices.currency
        )

    def choice(self, refused: Mapping[str, str]) -> Choice | None:
        """Choose what is promoted of the variants that passed.

        Args:
            refused: why a variant may not be promoted whatever its speed is; empty where it may.
        """
        judged = {each.name: found for each in self._entrants if (found := self.verdict(each.name)) is not None}
        costs = {name: self.price(name) for name in judged}
        slow = {name: "not faster" for name, found in judged.items() if name in self._references and not found.passed}
        slow |= {name: "not faster than what its reference must beat" for name in judged if self._rests_on_slow(name)}
        return verdicts.choose(judged, costs, {**refused, **slow}, self.terms.slo, self.terms.rate, self.dearer)

    def _rests_on_slow(self, name: str) -> bool:
        """Tell whether a variant beats a reference that did not pass itself, and not the next one that did.

        It may be faster than one that is slower than the source, and slower than the source as well.
        """
        passed = self._references.get(name, "")
        while self._references.get(passed) and self._decided.get(passed, ("open",))[0] not in PASSED:
            passed = self._references[passed]
        if passed == self._references.get(name, ""):
            return False
        standing = self._standing(name, passed)
        return verdicts.outcome(standing.latency, standing.cpu) not in PASSED

    def dearer(self, name: str, other: str) -> bool:
        """Tell whether a variant surely costs more than another: in CPU time, or on a GPU in time that it is held.

        Where only one of them runs on a GPU, the prices tell, if there are any, by the means and with a margin.
        """
        standing = self._standing(name, other)
        if standing.cpu is not None:
            return standing.cpu.low > 0.0
        if standing.gpu is not None:
            return standing.gpu.low > 0.0
        return self.price(name).money * CHEAPER > self.price(other).money

    def _standing(self, name: str, other: str = "") -> Standing:
        """Return what is known of a variant beside another, or beside the SLO's limit."""
        return self._standings.get((name, other), UNSEEN)

    def _is_failed(self, name: str) -> bool:
        reference = self._references.get(name, "")
        return name in self._failed or (bool(reference) and self._is_failed(reference))

    def _contenders(self) -> list[str]:
        """Name the variants that may still be promoted."""
        return [
            each.name
            for each in self._entrants
            if not each.refused
            and not self._is_failed(each.name)
            and each.name not in self._stopped
            and self._decided.get(each.name, ("open",))[0] != "no"
        ]

    def _errors(self, name: str) -> float:
        return statistics.fmean(each.errors for each in self._found[name].values())

    def _meets_slo(self, name: str) -> bool:
        excess = statistics.median(each.excess for each in self._found[name].values())
        return self._standing(name).latency.high <= 0.0 and excess <= 1.0 and self._errors(name) <= self.terms.errors

    def _fails_more(self, name: str) -> bool:
        """Tell whether a variant fails more requests than the SLO allows, and more than its reference does."""
        reference = self._references.get(name)
        errors = self._errors(name)
        return reference is not None and errors > self.terms.errors and errors > self._errors(reference)

    def _is_slo_known(self, name: str) -> bool:
        found = self._standing(name).latency
        return found.high <= 0.0 or found.low > 0.0 or self._errors(name) > self.terms.errors

    def _beaten_by(self, name: str) -> str:
        """Name a variant that passed, meets the SLO and surely costs less; empty where there is none."""
        undecided = self.open()
        passed = (each for each in self._contenders() if each not in undecided and self._meets_slo(each))
        return next((each for each in passed if each != name and self.dearer(name, each)), "")

    def _left(self) -> list[str]:
        """Name the variants that may still win."""
        return [name for name in self._contenders() if not self._beaten_by(name)]

    def _is_hopeless(self, name: str, most: int) -> bool:
        """Tell whether a variant that goes on as it did, or somewhat better, would not pass with the rounds left."""
        found = self._standing(name, self._references[name])
        if found.looks < _LOOKS_TO_HOPE:
            return False
        half = found.latency.middle - found.latency.low
        at_most = half * math.sqrt(min(1.0, found.rounds / max(most, 1)))
        return found.latency.middle - _HOPE * half + at_most > verdicts.target(found.cpu)

    def _is_settled(self) -> bool:
        """Tell whether more rounds would hardly change what is promoted: nothing is better by more than a margin."""
        left = self._left()
        if not all(self._is_slo_known(name) for name in left):
            return False
        chosen = self.choice({each.name: "out" for each in self._entrants if each.name not in left})
        if chosen is None:
            return True
        others = [self._standing(chosen.variant, name) for name in left if name != chosen.variant]
        if not chosen.meets_slo:
            return all(each.latency.high < math.log(MARGIN) for each in others)
        return all(each.cpu is None or each.cpu.high < -math.log(CHEAPER) for each in others)


def play(rounds: Rounds, measure: Callable[[str, int], Round], *, limit_s: float, clock_s: Callable[[], float]) -> None:
    """Play rounds until every verdict is decided.

    Args:
        measure: measures a variant in a round; its TailcutError costs that round, the second one takes the variant out.
        limit_s: no round after ``sequential.LEAST`` begins once this long has passed.
        clock_s: seconds that only go up.
    """
    ends_s = clock_s() + limit_s
    why = f"all {rounds.terms.rounds} rounds were used (build.rounds): allow more, or longer rounds (build.round)"
    while names := rounds.due():
        begun_s = clock_s()
        rounds.left_s = max(0.0, ends_s - begun_s)
        if rounds.played >= LEAST and not rounds.left_s:
            why = f"{limit_s:g} s of load were used (build.load_limit): allow more, or longer rounds (build.round)"
            break
        for name in turn(names, rounds.played):
            try:
                rounds.add(name, measure(name, rounds.played))
            except TailcutError as error:
                rounds.miss(name, f"{error.message}: {error.hint}" if error.hint else error.message)
        now_s = clock_s()
        rounds.look(rounds.played + 1 + int((ends_s - now_s) / max(now_s - begun_s, 1e-9)))
    rounds.took_s = clock_s() - ends_s + limit_s
    rounds.close(why)
