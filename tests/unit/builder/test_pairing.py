"""builder.recipes.pair: which two variants, and where they switch."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder.recipes.pair import best_switch

LENGTHS = (16, 32, 64, 128)


def ms(*values: float) -> dict[int, float]:
    return dict(zip(LENGTHS, values, strict=True))


def test_they_switch_where_the_second_becomes_the_faster_one() -> None:
    found = best_switch({"ort": ms(1, 2, 4, 8), "openvino": ms(2, 2.5, 3, 4), "slow": ms(9, 9, 9, 9)})
    assert found is not None
    assert (found.short, found.long, found.at) == ("ort", "openvino", 32)
    assert found.single == "openvino"
    assert math.isclose(found.ratio, (0.5 * 0.8) ** 0.25)
    assert found.pays


def test_there_is_no_pair_where_one_is_the_fastest_at_every_length() -> None:
    assert best_switch({"ort": ms(1, 2, 3, 4), "openvino": ms(1.1, 2.1, 3.1, 4.1)}) is None


def test_a_gain_of_noise_does_not_pay() -> None:
    found = best_switch({"ort": ms(1, 2, 3, 4), "openvino": ms(1.01, 1.99, 3.01, 4.01)})
    assert found is None or not found.pays


milliseconds = st.floats(0.01, 1000.0)
tables = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(*[milliseconds] * 4).map(lambda values: ms(*values)), min_size=2
)


@given(tables)
def test_no_other_pair_and_no_single_variant_is_faster(table: dict[str, dict[int, float]]) -> None:
    def cost(names: list[str]) -> float:
        return sum(math.log(table[name][length]) for name, length in zip(names, LENGTHS, strict=True))

    singles = [cost([name] * 4) for name in table]
    pairs = [cost([a] * n + [b] * (4 - n)) for a in table for b in table for n in (1, 2, 3)]
    best = min(singles + pairs)
    found = best_switch(table)
    if found is None:
        assert math.isclose(min(singles), best, rel_tol=1e-9, abs_tol=1e-9)
        return
    count = LENGTHS.index(found.at) + 1
    assert math.isclose(cost([found.short] * count + [found.long] * (4 - count)), best, rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(found.ratio, math.exp((best - min(singles)) / 4), rel_tol=1e-6)
    assert found.ratio <= 1.0
