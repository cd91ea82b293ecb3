"""What a feature cache would answer, where payloads differ in one field and in several."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.unit.profiler.levers.test_advice import asking
from tests.unit.profiler.levers.test_levers import pilot, reasons

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import advise
from tailcut.profiler.levers.known import LeverAssumptions, know
from tailcut.profiler.levers.work import read_work
from tailcut.profiler.payloads.diversity import Diversity, read_diversity
from tailcut.profiler.records import Recording

_RATE = 50.0
_USERS = 10
Payload = dict[str, Any]


def diversity_of(sent: list[Payload]) -> Diversity:
    return read_diversity(((n / _RATE, json.dumps(one).encode()) for n, one in enumerate(sent)), timed=False)


def known_of(recording: Recording, sent: list[Payload]) -> LeverAssumptions:
    return know(recording, [json.dumps(one).encode() for one in sent], diversity_of(sent), _RATE)


USERS: list[Payload] = [{"user": n % _USERS} for n in range(400)]


def test_the_field_that_alone_tells_payloads_apart_is_what_fetches_go_by() -> None:
    known = known_of(pilot(queries=1), USERS)
    assert float(np.mean(list(known.feature_hits.values()))) == pytest.approx(1 - _USERS / 400)
    assert not known.feature_doubt


def test_where_a_field_repeats_and_whole_payloads_do_not_nobody_knows_what_fetches_go_by() -> None:
    sent = [{"user": n % _USERS, "amount": n + 0.5} for n in range(400)]
    recording = pilot(queries=1)
    found = advise(
        recording, known=known_of(recording, sent), slo=parse_objectives("p95=5ms"), diversity=diversity_of(sent)
    )
    assert found is not None
    reason = reasons(found)["feature cache"]
    assert reason.startswith("not known: which field of the payload fetches go by: user repeats in 98%")


def test_a_transaction_goes_with_what_is_fetched_in_it_and_stays_with_what_is_written() -> None:
    reads = asking(pilot(queries=3), "BEGIN", "SELECT a FROM b", "COMMIT")
    writes = asking(pilot(queries=4), "BEGIN", "SELECT a FROM b", "COMMIT", "INSERT INTO log VALUES (?)")
    shares = [read_work(one, attribute(one), known_of(one, USERS)).cached_share for one in (reads, writes)]
    assert shares[0][:_USERS] == pytest.approx(0.0)
    assert shares[0][_USERS:] == pytest.approx(1.0)
    assert shares[1][_USERS:] == pytest.approx(1 / 4)
