"""Find out how the two sides belong together: the form of requests, and the fields of replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailcut.common.redaction import without_secrets
from tailcut.errors import ManifestError, StartError
from tailcut.manifest import Deployment
from tailcut.parity.analysis.comparing import ParityExchange, ParityReply, sides_of
from tailcut.parity.analysis.mapping import FieldPair, same_names, within
from tailcut.parity.analysis.paths import MISSING, FieldPath, leaves, output_name, plain_name, predictions_of
from tailcut.parity.analysis.request_form import AS_IT_IS, RequestForm, Takes, form_of
from tailcut.parity.analysis.tolerance import Tolerance
from tailcut.parity.asking import Asker
from tailcut.parity.payloads import Payload

_TRIED = 10
"""Requests of which the pilot must answer one."""


class NothingCompared(StartError):
    """No answers of the two sides could be compared."""


def takes_of(deployment: Deployment) -> Takes:
    """Return the fields that a deployment knows."""
    model = deployment.model
    columns: dict[str, int] = {}
    for tensor in model.inputs:
        bare = {} if model.reads_any_field else {tensor.name: len(tensor.shape) - 1}
        columns |= dict.fromkeys(tensor.columns, 0) or bare
    return Takes(tuple(deployment.features.entity) if deployment.features.groups else (), columns)


def choose_form(payloads: Sequence[Payload], takes: Takes) -> RequestForm:
    """Make the form of the deployment's requests from the field names of the first payload that has one.

    Raises:
        NothingCompared: no payload has the fields that the deployment takes.
        StartError: a payload has them in several places.
    """
    for payload in payloads:
        if (form := form_of(payload.body, takes)) is not None:
            return form
    theirs = [str(path) for path in leaves(payloads[0].body, 1)] if payloads else []
    raise NothingCompared(
        f"the payload's fields ({', '.join(theirs)}) do not have the names of those that the deployment takes"
        f" ({', '.join(takes.entity or takes.columns)})",
        hint="give the path of rows or entities: --request entities=PATH, rows=PATH or rows.FIELD=PATH",
    )


def check_pilot(payloads: Sequence[Payload], pilot: Asker) -> None:
    """Refuse a pilot that answers none of the first requests: the others would each wait for a time-out.

    Raises:
        NothingCompared: it answers none.
    """
    reply = ParityReply(0, None, "")
    for payload in payloads[:_TRIED]:
        reply = pilot.ask(payload.raw, payload.path)
        if reply.answered:
            return
    raise NothingCompared(
        f"the pilot answered none of the first {len(payloads[:_TRIED])} requests at {without_secrets(pilot.url)}; its "
        f"last reply is {reply.status}: {reply.text}",
        hint="set its route with --path and its headers with --header 'NAME: VALUE'",
    )


def choose_pairs(
    exchanges: Sequence[ParityExchange], given: Sequence[FieldPair] = (), form: RequestForm = AS_IT_IS
) -> Sequence[FieldPair]:
    """Pair the fields with equal names, or check the pairs that are given.

    Args:
        exchanges: requests on both sides.
        given: pairs; empty: by name.
        form: by which the deployment's requests were made.

    Raises:
        NothingCompared: no request was answered by both, or no field of the pilot has the name of an output.
        ManifestError: a field that is given is in no reply.
    """
    if not any(one.theirs.answered and one.ours.answered for one in exchanges):
        first = exchanges[0]
        raise NothingCompared(
            f"no request was answered by both sides; for the first the pilot replied {first.theirs.status}:"
            f" {first.theirs.text}, and the deployment {first.ours.status}: {first.ours.text}",
            hint=_refusal_hint(first, form),
        )
    if given:
        _check_given(given, exchanges)
        return given
    theirs, ours = fields_of(exchanges)
    pairs = same_names(theirs, ours)
    if not pairs:
        raise _unpaired(theirs, ours, pairs)
    return pairs


def refuse_left_over(pairs: Sequence[FieldPair], exchanges: Sequence[ParityExchange]) -> None:
    """Refuse pairs that leave fields of both sides over: they may be one output under two names.

    Raises:
        NothingCompared: they do.
    """
    theirs, ours = _left_over(pairs, exchanges)
    if theirs and ours:
        raise _unpaired(theirs, ours, pairs)


def fields_of(exchanges: Sequence[ParityExchange]) -> tuple[list[FieldPath], list[FieldPath]]:
    """List the paths of the pilot's fields and of the deployment's outputs, of the requests that both answered."""
    both = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    theirs = dict.fromkeys(path for one in both for path in leaves(one.theirs.body, one.rows))
    ours = dict.fromkeys(path for one in both for path in predictions_of(one.ours.body, one.rows))
    return list(theirs), list(ours)


def unmatched(pairs: Sequence[FieldPair], exchanges: Sequence[ParityExchange]) -> tuple[list[str], list[str]]:
    """List the pilot's fields and the deployment's outputs that no pair has."""
    theirs, ours = _left_over(pairs, exchanges)
    return [str(path) for path in theirs], [output_name(path) for path in ours]


def check_tolerances(tolerances: Mapping[str, Tolerance], pairs: Sequence[FieldPair]) -> None:
    """Refuse a tolerance that no output has: it would be left out without a word.

    Raises:
        ManifestError: there is one.
    """
    names = [pair.name for pair in pairs]
    for name in tolerances:
        if name and name not in names:
            raise ManifestError(
                f"--tolerance {name}=...: no compared output has this name",
                hint=f"compared outputs: {', '.join(names)}",
            )


def _left_over(
    pairs: Sequence[FieldPair], exchanges: Sequence[ParityExchange]
) -> tuple[list[FieldPath], list[FieldPath]]:
    theirs, ours = fields_of(exchanges)
    return (
        [path for path in theirs if not any(within(pair.theirs, path) for pair in pairs)],
        [path for path in ours if not any(within(pair.ours, path) for pair in pairs)],
    )


def _unpaired(theirs: Sequence[FieldPath], ours: Sequence[FieldPath], pairs: Sequence[FieldPair]) -> NothingCompared:
    """Say why fields that belong to no pair have none, and how to name the pairs."""
    twice = ""
    for name in dict.fromkeys(plain_name(path.name) for path in ours):
        first, second = ([path for path in side if plain_name(path.name) == name] for side in (theirs, ours))
        if name and first and second:
            theirs, ours, twice = first, second, second[0].name
            break
    shown, outputs = [str(path) for path in theirs], [output_name(path) for path in ours]
    pilot, deployment = f"the pilot ({', '.join(shown)})", f"the deployment ({', '.join(outputs)})"
    given = [f"{next(iter(shown), 'PILOT.PATH')}={next(iter(outputs), 'OUTPUT')}"]
    given += [f"{pair.theirs}={pair.name}" for pair in pairs]
    return NothingCompared(
        f"the name {twice} occurs more than once: {pilot}, {deployment}"
        if twice
        else f"no field of {pilot} has the name of one of {deployment}",
        hint=f"name the pairs to compare, the pilot's field on the left: --map {' --map '.join(given)}",
    )


def _refusal_hint(first: ParityExchange, form: RequestForm) -> str:
    if first.ours.status in {401, 403}:
        return "--deployment-header 'Authorization: Bearer ...' goes to the server of --deployment"
    other = form.turned()
    made = f"; the deployment's request was made by {form.flags}: try {other.flags}" if other != form else ""
    return f"check that both sides have the same data{made}"


def _check_given(given: Sequence[FieldPair], exchanges: Sequence[ParityExchange]) -> None:
    both = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    names = unmatched([], both)
    for pair in given:
        sides = [sides_of(one, pair) for one in both]
        for who, text, which in (("pilot", str(pair.theirs), 0), ("deployment", pair.name, 1)):
            if all(value is MISSING for side in sides for value in side[which]):
                raise ManifestError(
                    f"--map {pair.theirs}={pair.name}: no reply of the {who} has {text!r}",
                    hint=f"its fields: {', '.join(names[which])}",
                )
