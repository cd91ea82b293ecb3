"""The comparison of ladders with what profiles foretell: of which two rungs one surely wins more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.profile_ladder_rounds import _pairs


def rounds(foretold: tuple[float, ...], *measured: tuple[float, ...]) -> Any:
    """A round for each of ``measured``: p95s of the pilot and of the rungs after it."""
    names = ("pilot", "+ a", "+ b")
    return [
        [
            SimpleNamespace(rung=name, measured_ms=ms, foretold=SimpleNamespace(p95_ms=told))
            for name, ms, told in zip(names, one, foretold, strict=True)
        ]
        for one in measured
    ]


def test_a_pair_of_which_one_surely_wins_more_is_foretold_or_not() -> None:
    measured = ((10.0, 4.0, 3.0), (11.0, 5.1, 4.2), (9.0, 3.0, 2.1))  # a wins 6, b wins 1
    assert "Of 1 pairs of rungs of which one surely wins more 1 are foretold so." in _pairs(
        rounds((10.0, 5.0, 4.0), *measured)
    )
    assert "1 pairs of rungs of which one surely wins more 0 are foretold so, not so + a / + b (+5" in _pairs(
        rounds((10.0, 9.0, 4.0), *measured)
    )


def test_what_is_foretold_to_win_as_much_is_not_foretold_whichever_comes_first() -> None:
    a_wins = ((10.0, 4.0, 3.0), (11.0, 5.1, 4.2), (9.0, 3.0, 2.1))
    b_wins = ((10.0, 9.0, 3.0), (11.0, 10.1, 4.2), (9.0, 8.0, 2.1))
    for measured in (a_wins, b_wins):
        assert "surely wins more 0 are foretold so" in _pairs(rounds((10.0, 8.0, 6.0), *measured))


def test_what_rounds_do_not_tell_is_left_open() -> None:
    said = _pairs(rounds((10.0, 8.0, 6.0), (10.0, 8.0, 7.0), (10.0, 9.0, 7.0), (10.0, 8.5, 7.0)))
    assert "Of 0 pairs" in said
    assert "leave open + a / + b (-0." in said or "leave open + a / + b (+0" in said
    assert "does not say" in _pairs(rounds((10.0, 8.0, 6.0), (10.0, 8.0, 7.0)))
