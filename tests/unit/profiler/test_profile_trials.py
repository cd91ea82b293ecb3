"""Whether an application bears a rate: in a trial, and in the run itself."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, Samples
from tailcut.load.summary import RunFacts
from tailcut.profiler import pilot

WITHOUT = LoadPlan(url="http://127.0.0.1:1/", rate=50.0, duration_s=2.0)


def answering(monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
    """Every request is answered after 4 ms, with these statuses in turn; -3 is no answer."""

    def measured(load: LoadPlan) -> tuple[Samples, RunFacts]:
        count = int((load.rate or 1.0) * load.duration_s)
        at_ns = np.arange(count, dtype=np.int64) * int(load.duration_s / count * 1e9)
        status = np.resize(np.array(statuses, dtype=np.int16), count)
        samples = Samples(
            intended_ns=at_ns, sent_ns=at_ns, done_ns=at_ns + 4_000_000, status=status,
            cache=np.zeros(count, np.int8), cache_names=("",), stages_ms={}, measured_from_ns=0,
        )  # fmt: skip
        return samples, RunFacts(window_s=load.duration_s)

    monkeypatch.setattr(pilot, "measure", measured)


@pytest.mark.parametrize("statuses", [(200,), (200, 200, 200, 200, 500), (200, 404), (302,)])
def test_whoever_replies_bears_the_rate(monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...]) -> None:
    """Whatever it says."""
    answering(monkeypatch, *statuses)
    pilot.try_rate(WITHOUT, "shop:app")


def test_whoever_stays_silent_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 200, 200, -3)
    with pytest.raises(ProfileError, match=r"shop:app cannot sustain 50 requests/s: it answered 33\.\d+/s") as caught:
        pilot.try_rate(WITHOUT, "shop:app")
    assert "--rate 23" in caught.value.hint


@pytest.mark.parametrize(
    ("statuses", "says", "way_out"),
    [
        ((200, -3), "50 of 100 requests got no answer within 30 s, at a rate that was fine", "at its locks"),
        ((200, -2), "50 of 100 requests got no answer, 50 of them because", "may have died"),
    ],
)
def test_requests_that_were_given_up_are_told_from_those_that_were_cut_off(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], says: str, way_out: str
) -> None:
    answering(monkeypatch, *statuses)
    load = msgspec.structs.replace(WITHOUT, timeout_s=30.0)
    with pytest.raises(ProfileError) as caught:
        pilot.check_answered(load, pilot.measure(load)[0])
    assert caught.value.message.startswith(says)
    assert way_out in caught.value.hint
