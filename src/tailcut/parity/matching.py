"""Find out how the two sides belong together: the form of requests, and the fields of replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailcut.common.json_values import encode
from tailcut.common.redaction import without_secrets
from tailcut.errors import ManifestError, StartError
from tailcut.manifest import Deployment
from tailcut.parity.analysis.comparing import Exchange, Reply, sides_of
from tailcut.parity.analysis.mapping import Answered, Pair, guess_pairs, unmatched
from tailcut.parity.analysis.paths import MISSING
from tailcut.parity.analysis.request_form import RequestForm, Takes, guess_forms
from tailcut.parity.analysis.tolerance import Tolerance
from tailcut.parity.asking import Asker
from tailcut.parity.payloads import Payload

_GUESSED_FROM = 50
_FORMS_TRIED_ON = 10


class NothingCompared(StartError):
    """No answers of the two sides could be compared."""


def takes_of(deployment: Deployment) -> Takes:
    """Return the fields that a deployment knows."""
    model = deployment.model
    columns = tuple(
        name
        for tensor in model.inputs
        for name in (tensor.columns or (() if model.reads_any_field else (tensor.name,)))
    )
    return Takes(tuple(deployment.features.entity) if deployment.features.groups else (), columns)


def choose_form(payloads: Sequence[Payload], pilot: Asker, ours: Asker, takes: Takes) -> RequestForm:
    """Take the first form of the pilot's requests that the deployment answers.

    Raises:
        NothingCompared: the pilot answered none of the first requests, or the deployment none of their forms.
    """
    refused = Reply(0, None, "")
    understood: RequestForm | None = None
    for payload in _answered(payloads[:_FORMS_TRIED_ON], pilot):
        for form in guess_forms(payload.body, takes):
            asked = form.apply(payload.body)
            if asked is None:
                continue
            refused = ours.ask(encode(asked))
            if refused.answered:
                return form
            if refused.status == 404:  # an entity that is not known: what it is was understood
                understood = understood or form
    if understood is not None:
        return understood
    raise NothingCompared(
        f"the deployment accepts no form of the pilot's request; its reply is {refused.status}: {refused.text}",
        hint=_token_hint(refused)
        or "give the path of rows or entities: --request entities=PATH, rows=PATH or rows.FIELD=PATH",
    )


def choose_pairs(exchanges: Sequence[Exchange], given: Sequence[Pair] = ()) -> Sequence[Pair]:
    """Guess which fields belong together, or check those that are given.

    Raises:
        NothingCompared: no request was answered by both, or no field looks like another.
        ManifestError: a field that is given is in no reply.
    """
    answered = answered_by_both(exchanges)
    if not answered:
        first = exchanges[0]
        raise NothingCompared(
            f"no request was answered by both sides; for the first the pilot replied {first.theirs.status}:"
            f" {first.theirs.text}, and the deployment {first.ours.status}: {first.ours.text}",
            hint=_token_hint(first.ours)
            or "check that both sides have the same data; set the form of the deployment's request with --request",
        )
    if given:
        _check_given(given, exchanges, answered)
        return given
    pairs = guess_pairs(answered[:_GUESSED_FROM])
    if not pairs:
        theirs, ours = unmatched([], answered)
        raise NothingCompared(
            f"no field of the pilot ({', '.join(theirs)}) looks like one of the deployment ({', '.join(ours)})",
            hint="name two fields that belong together, the pilot's on the left: --map "
            f"{next(iter(theirs), 'PILOT.PATH')}={next(iter(ours), 'OUTPUT')}",
        )
    return pairs


def check_tolerances(tolerances: Mapping[str, Tolerance], pairs: Sequence[Pair]) -> None:
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


def _token_hint(ours: Reply) -> str:
    """Name the flag for a token where the deployment asks for one; empty where it does not."""
    asked = ours.status in {401, 403}
    return "--deployment-header 'Authorization: Bearer ...' goes to the server of --deployment" if asked else ""


def _check_given(given: Sequence[Pair], exchanges: Sequence[Exchange], answered: Sequence[Answered]) -> None:
    both = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    names = unmatched([], answered)
    for pair in given:
        sides = [sides_of(one, pair) for one in both]
        for who, text, which in (("pilot", str(pair.theirs), 0), ("deployment", pair.name, 1)):
            if all(value is MISSING for side in sides for value in side[which]):
                raise ManifestError(
                    f"--map {pair.theirs}={pair.name}: no reply of the {who} has {text!r}",
                    hint=f"its fields: {', '.join(names[which])}",
                )


def answered_by_both(exchanges: Sequence[Exchange]) -> list[Answered]:
    """Return the exchanges that both sides answered."""
    both = [one for one in exchanges if one.theirs.answered and one.ours.answered]
    return [Answered(one.theirs.body, one.ours.body, one.rows) for one in both]


def _answered(payloads: Sequence[Payload], pilot: Asker) -> list[Payload]:
    replies = [pilot.ask(payload.raw, payload.path) for payload in payloads]
    found = [payload for payload, reply in zip(payloads, replies, strict=True) if reply.answered]
    if not found:
        raise NothingCompared(
            f"the pilot answered none of the first {len(payloads)} requests at {without_secrets(pilot.url)}; its reply "
            f"is {replies[0].status}: {replies[0].text}",
            hint="set its route with --path and its headers with --header 'NAME: VALUE'",
        )
    return found
