"""Why answers differ: the model's inputs on both sides, what differing rows have in common, and answers that move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tailcut.common.json_values import encode
from tailcut.errors import TailcutError
from tailcut.manifest.subject import Subject
from tailcut.parity.analysis.comparing import Comparison, Exchange, sides_of
from tailcut.parity.analysis.concentration import concentrations
from tailcut.parity.analysis.tolerance import compare, tolerance_of
from tailcut.parity.asking import Asker
from tailcut.parity.inputs import inputs_record, see_inputs
from tailcut.parity.pilots import Pilot
from tailcut.parity.replica import Replica, Row, open_replica
from tailcut.parity.results import Sorted
from tailcut.report.parity.file import InputsParity, VariantParity

_DIFFERING, _EQUAL = 40, 20
"""Requests that causes are looked for in."""
_MOVING = (
    "answers change with time or at random: pin the clock and the seeds of both sides (see "
    "docs/how-to/parity.md), else random differences are reported"
)


def diagnose(
    record: VariantParity,
    found: Sorted,
    comparison: Comparison,
    pilot: Pilot,
    asker: Asker,
    subject: Subject,
    variant: str,
    tell: Callable[[str], None],
) -> VariantParity:
    """Look for the causes of what differs.

    Args:
        record: of the variant, without causes.
        found: its exchanges.
        comparison: what counts as equal.
        pilot: that is still there to be asked.
        asker: of the variant.
        subject: the deployment, with caches off.
        variant: its name; empty: the manifest's own.
        tell: hears what is being done.
    """
    if not record.judged or not (found.differing or pilot.inputs):
        return record
    differing = _distinct(found.differing, _DIFFERING)
    sample = [*differing, *_distinct(found.equal, _EQUAL)]
    unsteady = _unsteady(differing, pilot, asker, comparison)
    notes = [f"{unsteady} of {len(differing)} requests that differ: {_MOVING}"] if unsteady else []
    tell("looking for causes")
    inputs: InputsParity | None = None
    common: list[str] = []
    try:
        with open_replica(subject, variant or subject.manifest.deployment.serve.variant) as replica:
            if pilot.inputs is not None:
                seen = see_inputs(pilot, replica, sample)
                inputs = inputs_record(seen, replica, [one.number for one in differing])
            common = _common(replica, sample, found) if differing else []
    except TailcutError as error:
        notes.append(f"causes were not looked for: {error.message}")
    return msgspec.structs.replace(
        record,
        unsteady=unsteady,
        inputs=inputs,
        common=tuple({one.partition(": ")[0]: one for one in (*common, *record.common)}.values()),
        notes=(*record.notes, *notes),
    )


def _unsteady(exchanges: Sequence[Exchange], pilot: Pilot, asker: Asker, comparison: Comparison) -> int:
    """Count the requests that the pilot, or the deployment, answers otherwise when they are sent again."""
    count = 0
    for one in exchanges:
        theirs = pilot.asker.ask(encode(one.request), one.path)
        ours = asker.ask(encode(one.asked))
        count += not _same_replies(one, one._replace(theirs=theirs, ours=ours), comparison)
    return count


def _same_replies(before: Exchange, after: Exchange, comparison: Comparison) -> bool:
    if not (after.theirs.answered and after.ours.answered):
        return False
    for pair in comparison.pairs:
        tolerance = tolerance_of(pair.name, comparison.tolerances)
        for first, second in zip(sides_of(before, pair), sides_of(after, pair), strict=True):
            if not compare(first, second, tolerance).equal:
                return False
    return True


def _distinct(exchanges: Sequence[Exchange], most: int) -> list[Exchange]:
    """Take the first exchanges whose requests differ."""
    return list(_first_distinct(exchanges))[:most]


def _first_distinct(exchanges: Sequence[Exchange]) -> Iterator[Exchange]:
    seen: set[bytes] = set()
    for one in exchanges:
        body = encode([one.path, one.request])
        if body not in seen:
            seen.add(body)
            yield one


def _common(replica: Replica, exchanges: Sequence[Exchange], found: Sorted) -> list[str]:
    """Say what the feature rows that differ have in common."""
    wrong = {(one.number, one.row) for one in found.differences}
    rows: list[Row] = []
    differs: list[bool] = []
    for one in exchanges:
        try:
            features = replica.feature_rows(one.asked)
        except TailcutError:
            continue
        rows += features
        differs += [(one.number, row) in wrong for row in range(len(features))]
    return [str(one) for one in concentrations(rows, differs)]
