"""Names of a plot's points: inside the plot, clear of each other, and led to their point."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tailcut.report.builds.labels import HEIGHT, Box, place

AREA = Box(left=90, top=30, right=960, bottom=370)
NAMES = ("torch", "onnx", "int8-dynamic", "int8-static", "openvino", "openvino-int8", "pair", "int8-qat")
_crowds = st.lists(
    st.tuples(st.floats(120, 780), st.floats(50, 350)), min_size=1, max_size=len(NAMES)
).map(lambda spots: [(name, *spot) for name, spot in zip(NAMES, spots, strict=False)])  # fmt: skip


@given(points=_crowds)
def test_every_point_has_a_label_inside_the_plot_clear_of_the_others(points: list[tuple[str, float, float]]) -> None:
    marks = [Box(left=x - 8, top=y - 8, right=x + 8, bottom=y + 8) for _, x, y in points]
    labels = place(points, marks, AREA)
    assert [each.text for each in labels] == [name for name, _, _ in points]
    for label in labels:
        assert AREA.left <= label.box.left
        assert label.box.right <= AREA.right
        assert AREA.top <= label.box.top
        assert label.box.bottom <= AREA.bottom
        assert all(label.box.overlap(mark) == 0 for mark in marks)
    assert all(one.box.overlap(other.box) == 0 for one, other in combinations(labels, 2))


@given(x=st.floats(200, 700), y=st.floats(80, 320))
def test_points_on_one_spot_are_all_named_and_those_further_off_are_led_there(x: float, y: float) -> None:
    labels = place([(name, x, y) for name in NAMES], [Box(left=x - 8, top=y - 8, right=x + 8, bottom=y + 8)], AREA)
    assert all(one.box.overlap(other.box) == 0 for one, other in combinations(labels, 2))
    assert sum(each.leader is not None for each in labels) >= len(NAMES) // 2
    for each in labels:
        if each.leader is not None:
            (start_x, start_y), (end_x, end_y) = each.leader
            assert abs((start_x - x) ** 2 + (start_y - y) ** 2 - 49) < 1e-6
            assert each.box.left <= end_x <= each.box.right
            assert each.box.top <= end_y <= each.box.bottom


def test_where_there_is_no_room_a_label_is_still_given() -> None:
    tiny = Box(left=0, top=0, right=10, bottom=HEIGHT)
    (label,) = place([("openvino-int8", 5, 5)], [], tiny)
    assert label.text == "openvino-int8"
