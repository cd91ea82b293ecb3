"""Two models on the same cores: what each is left by the other, and what sharing costs."""

from __future__ import annotations

import pytest
from tests.simulation.shared_cores import Load, run

SECONDS, WARM_UP_S = 12.0, 3.0


def capacity_rps(cores: int) -> float:
    load = Load(0)
    return 1e3 * cores * load.max_rows / load.cost_ms(load.max_rows)


def good_rps(load: Load) -> float:
    return load.good * load.asked / (SECONDS - WARM_UP_S)


def ran(cores: int, a: float, b: float, *, shared: bool = True, **more: float) -> tuple[Load, Load]:
    """Offer two models so many times what the cores can do."""
    loads = {"a": Load(a * capacity_rps(cores)), "b": Load(b * capacity_rps(cores), **more)}  # type: ignore[arg-type]
    run(loads, cores=cores, seconds=SECONDS, warm_up_s=WARM_UP_S, shared=shared)
    return loads["a"], loads["b"]


@pytest.mark.parametrize("cores", [1, 2])
def test_an_overloaded_model_leaves_the_other_its_share(cores: int) -> None:
    """A is offered five times what the machine can do, B a third of its share; the SLO is over four of A's batches."""
    heavy, calm = ran(cores, 5.0, 1 / 6)
    assert calm.good >= 0.99
    assert good_rps(heavy) >= 0.85 * capacity_rps(cores) / 2
    assert good_rps(heavy) >= 0.8 * (1 - 1 / 6) * capacity_rps(cores), "what the calm one does not use is its"


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("load", [0.3, 0.45, 0.6])
def test_two_models_in_one_server_do_as_well_as_in_two(cores: int, load: float) -> None:
    together = sum(good_rps(each) for each in ran(cores, load, load))
    apart = sum(good_rps(each) for each in ran(cores, load, load, shared=False))
    assert together >= 0.95 * apart


def test_shares_weigh_what_two_overloaded_models_get() -> None:
    heavy, light = ran(2, 3.0, 3.0, share=0.5)
    assert good_rps(heavy) / good_rps(light) == pytest.approx(2.0, rel=0.15)


def test_long_batches_are_cut_for_the_sake_of_a_model_with_a_tight_slo() -> None:
    """Whole, a batch of A takes 226 ms, longer than B's limit."""
    loads = {"a": Load(100, row_ms=7, max_rows=32, limit_ms=1500), "b": Load(20, row_ms=2, max_rows=4, limit_ms=100)}
    run(loads, cores=1, seconds=SECONDS, warm_up_s=WARM_UP_S)
    assert loads["a"].good > 0.95
    assert loads["b"].good > 0.95


def test_an_overloaded_models_long_batches_leave_a_tight_slo_in_reach() -> None:
    """A batch of A takes up to 226 ms; without a limit a third of B's answers are late."""
    loads = {"a": Load(300, row_ms=7, max_rows=32, limit_ms=1500), "b": Load(20, row_ms=2, max_rows=4, limit_ms=100)}
    loads["a"].timeout_ms = 3000
    run(loads, cores=1, seconds=SECONDS, warm_up_s=WARM_UP_S)
    assert loads["b"].good >= 0.99
