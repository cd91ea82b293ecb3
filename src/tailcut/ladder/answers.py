"""The answers of each rung beside the pilot's, on a sample of the traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailcut.errors import ManifestError, TailcutError
from tailcut.ladder.measuring import Bench
from tailcut.ladder.rungs import RungRun
from tailcut.parity.analysis.comparing import Exchange, differences_in, figures_of, outcome_of
from tailcut.parity.analysis.mapping import Pair
from tailcut.parity.analysis.request_form import AS_IT_IS
from tailcut.parity.analysis.tolerance import DEFAULT
from tailcut.parity.asking import Asker, exchange
from tailcut.parity.matching import choose_pairs, unmatched
from tailcut.parity.payloads import Payload
from tailcut.report.ladder.file import RungParity

_TIMEOUT_S = 30.0


def compare_rungs(
    bench: Bench,
    rungs: Sequence[RungRun],
    payloads: Sequence[Payload],
    pairs: Sequence[Pair],
    tell: Callable[[str], None],
) -> None:
    """Ask the pilot and each rung the same requests, and keep with the rung what differs.

    The pilot runs beside each rung in turn, because answers may change with time. A request whose answers differ is
    sent to both once more. A rung that cannot be asked says why; it is measured all the same.

    Args:
        bench: starts servers.
        rungs: those of the ladder, the pilot's own among them.
        payloads: of the traffic.
        pairs: fields that belong together; empty: those with equal names.
        tell: hears what is being done.

    Raises:
        ManifestError: a field of ``pairs`` is in no reply.
    """
    asked = [rung for rung in rungs if not (rung.pilot or rung.refused)]
    try:
        with bench.server(RungRun.of_pilot("", {})) as server:
            pilot = Asker(bench.url(server, pilot=True), timeout_s=_TIMEOUT_S)
            for rung in asked:
                rung.parity = _of_rung(bench, rung, pilot, payloads, pairs)
                tell(f"{rung.name}: {describe(rung.parity)}")
    except ManifestError:
        raise
    except TailcutError as error:
        tell(f"answers were not compared: {error.message}")


def describe(found: RungParity) -> str:
    """Say in words how the answers compare."""
    if found.failed:
        return f"answers were not compared: {found.failed}"
    parts = []
    if not (found.differing or found.status_differences):
        parts.append(f"the pilot's answers to {found.requests} requests")
    if found.differing:
        most = "" if found.max_difference is None else f", by {found.max_difference:.3g} at most in {found.output}"
        parts.append(f"{found.differing} of {found.requests} answers differ from the pilot's{most}")
    if found.status_differences:
        parts.append(f"{found.status_differences} of {found.requests} requests were answered by one side only")
    if found.left_out:
        parts.append(f"not compared: {', '.join(found.left_out)}")
    return "; ".join(parts)


def _of_rung(
    bench: Bench, rung: RungRun, pilot: Asker, payloads: Sequence[Payload], given: Sequence[Pair]
) -> RungParity:
    try:
        with bench.server(rung) as server:
            ours = Asker(bench.url(server, pilot=False), timeout_s=_TIMEOUT_S)
            exchanges = [exchange(number, one, pilot, ours, AS_IT_IS) for number, one in enumerate(payloads, 1)]
            pairs = choose_pairs(exchanges, given)
            settled = [
                exchange(one.number, payload, pilot, ours, AS_IT_IS) if _differs(one, pairs) else one
                for one, payload in zip(exchanges, payloads, strict=True)
            ]
    except ManifestError:
        raise  # it would be the same with every rung
    except TailcutError as error:
        return RungParity(failed=f"{error.message}; {error.hint}" if error.hint else error.message)
    return _figures(settled, pairs)


def _differs(one: Exchange, pairs: Sequence[Pair]) -> bool:
    return outcome_of(one, pairs, differences_in(one, pairs, {})) in {"differs", "status"}


def _figures(exchanges: Sequence[Exchange], pairs: Sequence[Pair]) -> RungParity:
    outcomes = [outcome_of(one, pairs, differences_in(one, pairs, {})) for one in exchanges]
    answered = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    sizes = [
        (found.largest, pair.name)
        for pair in pairs
        if (found := figures_of(answered, pair, DEFAULT)).differing and found.largest is not None
    ]
    largest = max(sizes, default=(None, ""))
    return RungParity(
        requests=len(exchanges) - outcomes.count("uncompared"),
        differing=outcomes.count("differs"),
        status_differences=outcomes.count("status"),
        max_difference=largest[0],
        output=largest[1],
        left_out=tuple(unmatched(pairs, exchanges)[1]),
    )
