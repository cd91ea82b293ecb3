"""Why answers differ: the model's inputs on both sides, changes that explain the answers, and answers that move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tailcut.common.json_values import encode
from tailcut.errors import TailcutError
from tailcut.manifest.subject import Subject
from tailcut.parity.analysis.comparing import Exchange, sides_of
from tailcut.parity.analysis.concentration import concentrations
from tailcut.parity.analysis.explaining import Cause
from tailcut.parity.analysis.tolerance import compare, tolerance_of
from tailcut.parity.asking import Asker
from tailcut.parity.causes import Case, Comparison, explain_answers, make_cases
from tailcut.parity.inputs import explain_inputs, inputs_record, see_inputs
from tailcut.parity.pilots import Pilot
from tailcut.parity.replica import Replica, open_replica
from tailcut.parity.results import Sorted
from tailcut.report.parity.file import CauseParity, InputsParity, VariantParity

_DIFFERING, _EQUAL = 40, 20
"""Requests that causes are looked for in."""
_LEAST_KEPT = 0.5
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
    unsteady = _unsteady(differing, pilot, asker, comparison)
    notes = [f"{unsteady} of {len(differing)} requests that differ: {_MOVING}"] if unsteady else []
    tell("looking for causes")
    try:
        with open_replica(subject, variant or subject.manifest.deployment.serve.variant) as replica:
            causes, inputs, common, more = _causes(found, differing, comparison, pilot, replica)
    except TailcutError as error:
        causes, inputs, common, more = [], None, [], [f"causes were not looked for: {error.message}"]
    return msgspec.structs.replace(
        record,
        unsteady=unsteady,
        inputs=inputs,
        causes=tuple(causes),
        common=tuple({one.partition(": ")[0]: one for one in (*common, *record.common)}.values()),
        notes=(*record.notes, *notes, *more),
    )


def _causes(
    found: Sorted, differing: Sequence[Exchange], comparison: Comparison, pilot: Pilot, replica: Replica
) -> tuple[list[CauseParity], InputsParity | None, list[str], list[str]]:
    """Look at the inputs first, where they can be seen, and at the answers where these say nothing."""
    sample = [*differing, *_distinct(found.equal, _EQUAL)]
    inputs: InputsParity | None = None
    causes: list[CauseParity] = []
    notes: list[str] = []
    if pilot.inputs is not None:
        seen = see_inputs(pilot, replica, sample)
        inputs = inputs_record(seen, replica, [one.number for one in differing])
        causes = [_cause(one, "inputs") for one in explain_inputs(seen, inputs, replica)]
    if not differing:
        return causes, inputs, [], notes
    cases, left_out = make_cases(replica, sample, comparison)
    if left_out > _LEAST_KEPT * (left_out + len(cases)):
        notes.append(f"{left_out} rows get another answer when the request is repeated: {_MOVING}")
    same_inputs = inputs is not None and inputs.equal
    if not causes and not same_inputs and any(case.differs for case in cases):
        causes = [_cause(one, "answers") for one in explain_answers(replica, cases, comparison)]
    return causes, inputs, _common(cases), notes


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


def _common(cases: Sequence[Case]) -> list[str]:
    return [str(one) for one in concentrations([case.row for case in cases], [case.differs for case in cases])]


def _cause(cause: Cause, seen_in: str) -> CauseParity:
    return CauseParity(
        feature=cause.feature, change=cause.change, explained=cause.explained, of=cause.of, seen_in=seen_in
    )
