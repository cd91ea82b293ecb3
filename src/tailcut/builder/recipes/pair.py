"""Recipe "pair": one variant for short inputs and another for long ones, with the switch point measured.

Every variant made so far is timed on rows of each real length, in turn. A variant whose quality falls below the budget
on the selection split takes no part: the pair's own verdict would suffer from it.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import exp, log
from pathlib import Path

import msgspec
import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.quality import judging, scoring
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work
from tailcut.builder.records import Made
from tailcut.builder.speed.interleaving import take_turns
from tailcut.common.tensors import Arrays
from tailcut.errors import DoesNotApply
from tailcut.gate import QualityVerdict
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.live import LIVE
from tailcut.registry import digest

SEED = 0
BUDGET_S = 8.0
MOST_LENGTHS = 6
LEAST_SHARE = 0.02
"""Of the rows: a rarer length does not decide."""

_LOOKED_AT = 1024
_ROUNDS = (3, 9)
_SAMPLES = 8
_LEAST_CALLS = 3
_BLOCK_S = 0.05
_SCREENED = 1000
_HINT = "the single variants are still built and judged"


class Pair(Recipe):
    """Two of the variants made so far, switched by the length of the input."""

    name = "pair"
    base = ("onnx",)
    runtime = "pair"
    suffix = ".json"
    precision: Precision = "runtime"
    summary = "one variant for short inputs and another for long ones, switched at the length where it pays"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """It takes an input whose length varies."""
        if subject.trees or free_dimension(subject.deployment.model.inputs) is None:
            return "no input has a free dimension besides the batch, so all rows have the same length"
        return ""

    def make(self, work: Work) -> Result:
        """Time the variants at every length and write down which two and where they switch.

        Raises:
            DoesNotApply: all rows are equally long, fewer than two variants, or one is the best at every length.
        """
        place = free_dimension(work.manifest.deployment.model.inputs)
        assert place is not None
        shares = lengths(work.selection, *place)
        parts, dropped = _candidates(work)
        measured = spread(list(shares))
        medians = _measure(work, parts, rows_by_length(work.selection, *place, measured))
        switch = best_switch(medians)
        if switch is None or not switch.pays:
            raise DoesNotApply(_no_pair(switch, medians), hint=_HINT)
        short, long = parts[switch.short], parts[switch.long]
        between = [each for each in shares if switch.at < each < min(at for at in measured if at > switch.at)]
        closer = _measure(
            work, {each.name: each for each in (short, long)}, rows_by_length(work.selection, *place, spread(between))
        )
        at = last_faster(closer[short.name], closer[long.name], switch.at)
        work.path.write_bytes(_file(*place, at, short, long))
        return Result(
            found={
                "short": short.name,
                "long": long.name,
                "at": at,
                "input": place[0],
                "ratio": switch.ratio,
                "lengths": shares,
                "ms": medians,
                "ms_between": closer,
                "dropped": dropped,
            },
            # Of the part that has more; the runtime gives each part no more threads than its own.
            settings={
                name: max(int(part.settings.get(name, 1)) for part in (short, long))
                for name in ("threads", "executors")
            },
            parts={each.name: each.path for each in (short, long)},
            reference=switch.single,
        )


def free_dimension(inputs: Sequence[TensorSpec]) -> tuple[str, int] | None:
    """Find the first input's first free dimension beside the batch: (name, dimension); None where all are fixed."""
    places = ((tensor.name, n) for tensor in inputs for n, size in enumerate(tensor.shape) if n and size == -1)
    return next(places, None)


def lengths(selection: Holdout, name: str, dimension: int) -> dict[int, float]:
    """Return the lengths that are common, in ascending order, with the share of rows that have each.

    Raises:
        DoesNotApply: all rows are equally long.
    """
    rows = min(_LOOKED_AT, selection.rows)
    counts = Counter(selection.take(1, row)[name].shape[dimension] for row in range(rows))
    common = sorted(length for length, count in counts.items() if count >= LEAST_SHARE * rows)
    if len(common) < 2:
        raise DoesNotApply(
            f"no pair: every row of the holdout is {max(counts)} long, padding included",
            hint="if the rows are padded, name their mask in the holdout's padding",
        )
    return {length: counts[length] / rows for length in common}


def spread(common: Sequence[int]) -> list[int]:
    """Choose up to ``MOST_LENGTHS``, evenly, the first and the last among them."""
    places = np.linspace(0, len(common) - 1, min(MOST_LENGTHS, len(common))).round().astype(int)
    return [common[place] for place in places]


def last_faster(short: Mapping[int, float], long: Mapping[int, float], at: int) -> int:
    """Move the switch point up as long as the first variant stays the faster one: length -> milliseconds of each."""
    for length in sorted(short):
        if short[length] > long[length]:
            break
        at = length
    return at


def rows_by_length(selection: Holdout, name: str, dimension: int, wanted: Sequence[int]) -> dict[int, list[Arrays]]:
    """Return up to ``_SAMPLES`` single rows of each length."""
    found: dict[int, list[Arrays]] = {length: [] for length in wanted}
    for row in range(min(_LOOKED_AT, selection.rows)):
        inputs = selection.take(1, row)
        kept = found.get(inputs[name].shape[dimension])
        if kept is not None and len(kept) < _SAMPLES:
            kept.append(inputs)
    return found


def _candidates(work: Work) -> tuple[dict[str, Made], dict[str, str]]:
    """Return the variants that may be parts, and why others may not.

    Raises:
        DoesNotApply: fewer than two are left.
    """
    source = next(iter(work.made.values()))
    able = {name: made for name, made in work.made.items() if made.runtime not in LIVE and not made.parts}
    dropped = {name: "it needs the model's code in addition to its artifact" for name in work.made if name not in able}
    worse = _too_bad(work, source, [made for made in able.values() if made.name != source.name])
    kept = {name: made for name, made in able.items() if name not in worse}
    if len(kept) < 2:
        raise DoesNotApply(
            f"no pair: it needs two variants, but here is {', '.join(kept) or 'none'}"
            + "".join(f"; {name}: {why}" for name, why in {**dropped, **worse}.items()),
            hint=_HINT,
        )
    return kept, {**dropped, **worse}


def _too_bad(work: Work, source: Made, others: Sequence[Made]) -> dict[str, str]:
    """Say which variants' quality is below the budget on the selection split, as far as these rows tell."""
    if not others:
        return {}
    rows = work.selection.subset(np.arange(min(_SCREENED, work.selection.rows)))
    output = work.manifest.deployment.judged
    found = {
        made.name: {output: scoring.scores(_open(work, made), rows, output, alone=made.rows_alone)}
        for made in (source, *others)
    }
    judged = judging.judge(work.manifest, rows, found, source=source.name, uses=0)
    return {name: why for name, plain in judged.items() if (why := _over(msgspec.convert(plain, QualityVerdict)))}


def _over(verdict: QualityVerdict) -> str:
    if verdict.outcome == "fail":
        return verdict.reason
    over = (each for each in verdict.metrics if each.drop is not None and each.drop > each.budget)
    return "; ".join(
        f"{each.metric} drops by {each.drop:.4g} on the selection split, the budget is {each.budget:g}" for each in over
    )


def _measure(work: Work, parts: Mapping[str, Made], rows: Mapping[int, list[Arrays]]) -> dict[str, dict[int, float]]:
    """Milliseconds of a lone row, median over rounds: variant -> length."""
    if not rows:
        return {name: {} for name in parts}
    output = work.manifest.deployment.judged
    with ExitStack() as stack:
        blocks: dict[tuple[str, int], Callable[[], float]] = {}
        for name, made in parts.items():
            runtime = _open(work, made)
            stack.callback(runtime.close)
            for length, samples in rows.items():
                blocks[name, length] = _block(runtime, samples, output)
        least, most = _ROUNDS
        found = take_turns(blocks, least=least, most=most, budget_s=BUDGET_S)
    return {name: {length: statistics.median(found[name, length]) for length in rows} for name in parts}


def _open(work: Work, made: Made) -> Runtime:
    return work.open(made, threads=int(made.settings.get("threads", 1)))


def _block(runtime: Runtime, samples: Sequence[Arrays], output: str) -> Callable[[], float]:
    """Warm up at this length, and return what measures it once: the median of a block's calls, in milliseconds."""

    def timed(inputs: Arrays) -> float:
        begun_ns = time.perf_counter_ns()
        runtime.run(inputs, [output])
        return (time.perf_counter_ns() - begun_ns) / 1e6

    least_ms = min(timed(inputs) for _ in range(_LEAST_CALLS) for inputs in samples[:2])
    calls = max(_LEAST_CALLS, min(2 * _SAMPLES, int(_BLOCK_S * 1e3 / max(least_ms, 1e-3))))
    chosen = [samples[number % len(samples)] for number in range(calls)]
    return lambda: statistics.median(timed(inputs) for inputs in chosen)


def _no_pair(switch: LengthSwitch | None, ms: Mapping[str, Mapping[int, float]]) -> str:
    if switch is None:
        fastest = min(ms, key=lambda name: sum(np.log(list(ms[name].values()))))
        return f"no pair: {fastest} is the fastest at every length"
    return (
        f"no pair: {switch.short} up to a length of {switch.at} and {switch.long} above would take "
        f"{switch.ratio:.3f} of {switch.single}'s time, a pair must save {LEAST_GAIN:.0%}"
    )


def _file(name: str, dimension: int, at: int, short: Made, long: Made) -> bytes:
    from tailcut.models.runtimes.pair import PairFile, Part

    def part(made: Made) -> Part:
        return Part(variant=made.name, runtime=made.runtime, sha256=digest(Path(made.path)), settings=made.settings)

    pair = PairFile(input=name, dimension=dimension, at=at, short=part(short), long=part(long))
    return msgspec.json.format(msgspec.json.encode(pair, order="sorted"), indent=2) + b"\n"


# -- The switch point --------------------------------------------------------------------------------------------------


LEAST_GAIN = 0.03
"""A pair holds two models in memory: below 3 % less time (geometric mean over lengths) it is not worth that."""


class LengthSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of variants.

    Attributes:
        short: the variant that runs inputs of at most ``at``.
        long: the variant that runs the others.
        at: longest measured length at which ``short`` runs.
        single: the best variant alone: least geometric mean over all lengths.
        ratio: the pair's time over that of ``single``, geometric mean over all lengths; 1 or less.
    """

    short: str
    long: str
    at: int
    single: str
    ratio: float

    @property
    def pays(self) -> bool:
        """Whether it is worth two models in memory."""
        return self.ratio <= 1.0 - LEAST_GAIN


def best_switch(ms: Mapping[str, Mapping[int, float]]) -> LengthSwitch | None:
    """Find the pair and the switch point with the least time.

    Every length counts alike, as a ratio, so that long inputs (few, slow, and what the high percentiles are made of)
    weigh neither more nor less than short ones.

    Args:
        ms: variant -> length -> milliseconds; two variants or more, the same lengths for each, two or more.

    Returns:
        None where one variant is the fastest at every length.
    """
    lengths = sorted(next(iter(ms.values())))
    cost = {name: [log(found[length]) for length in lengths] for name, found in ms.items()}
    single = min(cost, key=lambda name: sum(cost[name]))
    best = (sum(cost[single]), single, single, len(lengths))
    for count in range(1, len(lengths)):
        short = min(cost, key=lambda name: sum(cost[name][:count]))
        long = min(cost, key=lambda name: sum(cost[name][count:]))
        if short != long:
            best = min(best, (sum(cost[short][:count]) + sum(cost[long][count:]), short, long, count))
    total, short, long, count = best
    if short == long:
        return None
    ratio = exp((total - sum(cost[single])) / len(lengths))
    return LengthSwitch(short=short, long=long, at=lengths[count - 1], single=single, ratio=ratio)
