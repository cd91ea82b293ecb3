"""Payload logs: with times, without, broken; and which requests a cache would have answered."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailcut.errors import LoadTestError, ProfileError
from tailcut.profiler.levers.known import answered_shares, entity_field, keys_of
from tailcut.profiler.payload_log import read_payload_log, sent_payloads
from tailcut.profiler.payloads.diversity import WHOLE, read_diversity


def written(folder: Path, text: str) -> Path:
    path = folder / "log.jsonl"
    path.write_text(text)
    return path


def test_payloads_without_times_are_laid_out_at_the_rate(tmp_path: Path) -> None:
    """One after the other, blank lines left out."""
    log = read_payload_log(written(tmp_path, '{"id": 1}\n\n{"id": 2}\n{"id": 1}\n'), rate=2.0)
    assert log.at_s == (0.0, 0.5, 1.0)
    assert not log.timed
    found = log.diversity()
    assert (found.whole.repeats, found.whole.distinct, found.timed) == (pytest.approx(1 / 3), 2, False)


def test_times_of_the_log_are_kept(tmp_path: Path) -> None:
    """Seconds or ISO 8601, sorted, from the first."""
    lines = '{"time": 12.5, "payload": {"id": 1}}\n{"time": 10, "payload": {"id": 2}}\n'
    log = read_payload_log(written(tmp_path, lines), rate=1.0)
    assert (log.at_s, log.timed) == ((0.0, 2.5), True)
    assert log.bodies == (b'{"id":2}', b'{"id":1}')
    iso = '{"time": "2026-01-31T12:00:00+00:00", "payload": 1}\n{"time": "2026-01-31T13:00:00+01:00", "payload": 1}'
    assert read_payload_log(written(tmp_path, iso), rate=1.0).at_s == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": 1}\n{id: 2}\n', "line 2 of .* is not JSON"),
        ("\n\n", "holds no payloads"),
        ('{"id": 1}\n{"time": 1, "payload": {}}\n', "line 2 of .* has a time, those before it have none"),
        ('{"time": 1, "payload": {}}\n{"id": 1}\n', "line 2 of .* has no time, those before it have one"),
        ('{"time": "noon", "payload": {}}\n', "line 1 of .* has the time 'noon'"),
        ('{"time": true, "payload": {}}\n', "line 1 of .* has the time True"),
    ],
)
def test_a_broken_log_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    """With the way out."""
    with pytest.raises(ProfileError, match=said) as caught:
        read_payload_log(written(tmp_path, text), rate=1.0)
    assert caught.value.hint


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """Said by its path."""
    with pytest.raises(ProfileError, match=r"cannot read the payloads .*none\.jsonl: No such file"):
        read_payload_log(tmp_path / "none.jsonl", rate=1.0)


def test_what_a_load_sends_is_what_is_read(tmp_path: Path) -> None:
    """In the order of the requests' numbers, each line of a file once: that it is sent again says nothing."""
    path = written(tmp_path, '{"id": 1}\n\n{"id": 2}\n{"id": 1}\n')
    log = sent_payloads(str(path), rate=10.0, count=50)
    assert log.bodies == (b'{"id": 1}', b'{"id": 2}', b'{"id": 1}')
    assert log.at_s[-1] == pytest.approx(0.2)
    assert sent_payloads(str(path), rate=10.0, count=2).bodies == log.bodies[:2]
    with pytest.raises(LoadTestError):
        sent_payloads(str(tmp_path / "none.jsonl"), rate=1.0, count=1)


def _items(_: int) -> list[tuple[str, bytes]]:
    return [(f"/items/{number}", b"") for number in range(300)]


def _searches(_: int) -> list[tuple[str, bytes | dict[str, int]]]:
    return [
        ("/search", {"id": 1}),
        ("/other?a=b", {"id": 1}),
        ("/search", b"\xff"),
        ("", b"\xff"),
        ("/search", {"id": 1}),
    ]


def _one_path(_: int) -> list[tuple[str, dict[str, int]]]:
    return [("/search", {"id": number % 2}) for number in range(4)]


def test_requests_for_other_paths_are_other_requests() -> None:
    """Their bodies are all empty: no cache answers one with what another got."""
    log = sent_payloads(f"{__name__}:_items", rate=10.0, count=300)
    found = log.diversity()
    assert (found.whole.distinct, found.whole.repeats) == (300, 0.0)
    assert entity_field(found) == "path"
    shares = answered_shares(keys_of(log.bodies, "path"), np.asarray(log.at_s), life_s=60.0, size=1000)
    assert shares.tolist() == [0.0] * 300


def test_the_same_body_to_another_path_is_another_request() -> None:
    """JSON keeps its fields; where all go to one path, that is no news."""
    log = sent_payloads(f"{__name__}:_searches", rate=10.0, count=5)
    first, other, raw, own, again = log.bodies
    assert first == again == b'{"path":"/search","body":{"id":1}}'
    assert len({first, other, raw, own}) == 4
    found = log.diversity()
    assert {one.name: one.distinct for one in found.streams} == {WHOLE: 4, "path": 2, "body.id": 1}
    assert any(note.startswith("2 payloads are not JSON") for note in found.notes)
    assert sent_payloads(f"{__name__}:_one_path", rate=10.0, count=4).bodies == (b'{"id":0}', b'{"id":1}') * 2


def _scores(_: int) -> list[tuple[str, bytes | dict[str, list[int]]]]:
    return [("/score", {"ids": [number % 3]}) if number % 2 else ("/health", b"") for number in range(60)]


def test_what_is_asked_about_is_found_beside_another_path() -> None:
    """A question for the server's health among the requests makes no entity of the path."""
    log = sent_payloads(f"{__name__}:_scores", rate=10.0, count=60)
    field = entity_field(log.diversity())
    assert field == "body.ids[]"
    keys = keys_of(log.bodies, field)
    assert len({key for one in keys for key in one}) == 4
    assert keys_of([b'{"path":"/a","body":{"ids":[1]}}'], field) != keys_of(
        [b'{"path":"/b","body":{"ids":[1]}}'], field
    )


def test_an_entity_is_the_only_field_that_varies() -> None:
    """Else the whole payload is what is looked up."""
    one = read_diversity([(0.0, b'{"entities":[1,2],"v":1}'), (1.0, b'{"entities":[3],"v":1}')], timed=True)
    assert entity_field(one) == "entities[]"
    two = read_diversity([(0.0, b'{"a":1,"b":1}'), (1.0, b'{"a":2,"b":2}')], timed=True)
    assert entity_field(two) == WHOLE


def test_shares_of_a_request_that_asks_for_several() -> None:
    """Each of its entities is looked up."""
    bodies = [b'{"entities":[1]}', b'{"entities":[1,2]}', b'{"entities":[1,2]}', b"no json", b'{"other":1}']
    keys = keys_of(bodies, "entities[]")
    assert [len(one) for one in keys] == [1, 2, 2, 1, 1]
    shares = answered_shares(keys, np.arange(5.0), life_s=10.0, size=100)
    assert shares.tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert answered_shares(keys, np.arange(5.0), life_s=1.0, size=100).tolist() == [0.0] * 5
    assert answered_shares([], np.zeros(0), life_s=1.0, size=1).tolist() == []


def names_of(*payloads: object) -> list[str]:
    """Kinds of look-ups beside the whole payload."""
    bodies = [msgspec.json.encode(payload) for payload in payloads]
    found = read_diversity([(float(number), body) for number, body in enumerate(bodies)], timed=True)
    return sorted(stream.name for stream in found.streams if stream.name != WHOLE)


@pytest.mark.parametrize(
    "keys",
    [
        ("17", "18"),
        ("6f9619ff-8b86-d011-b42d-00c04fc964ff",),
        ("alice@example.com", "bob@example.com"),
        ("2026-01-31", "2026-02-01"),
        ("d41d8cd98f00b204e9800998ecf8427e",),
    ],
)
def test_keys_that_are_ids_are_one_kind_of_look_up(keys: tuple[str, ...]) -> None:
    """What each of them holds is another; no id becomes a row, or a name in a report."""
    one = {"top": 3, "users": {key: {"city": "Bonn"} for key in keys}}
    assert names_of(one) == ["top", "users.*.city", "users{}"]
    assert names_of(dict.fromkeys(keys, 1.5)) == ["*", "{}"]
    assert names_of([{"by": {key: [1, 2] for key in keys}}]) == ["[].by.*[]", "[].by{}"]


def test_many_names_that_are_rare_are_data() -> None:
    """As ids that look like names are; fields that are always there are not, and a few optional ones are not."""
    tables = [{"users": {f"user_{number}": 1, f"user_{number + 1}": 2}} for number in range(40)]
    assert names_of(*tables) == ["users.*", "users{}"]
    fields = [{f"f{number}": number for number in range(20)} for _ in range(40)]
    assert names_of(*fields) == sorted(f"f{number}" for number in range(20))
    kinds = [{"kind": number % 4, f"only_{number % 4}": number} for number in range(40)]
    assert names_of(*kinds) == ["kind", "only_0", "only_1", "only_2", "only_3"]


@pytest.mark.parametrize("column", ["{}", "2026-01-{:02}"])
def test_numbers_and_days_that_most_objects_have_are_columns(column: str) -> None:
    """A row of a data frame, also where a value is missing; where others come in its place they are ids."""
    names = [column.format(place) for place in range(10, 20)]
    rows = [{"features": {name: number for name in names if name != names[number % 10]}} for number in range(40)]
    assert names_of(*rows) == sorted(f"features.{name}" for name in names)
    windows = [{"days": {f"{number + place}": 1.5 for place in range(5)}} for number in range(40)]
    assert names_of(*windows) == ["days.*", "days{}"]


def test_keys_of_a_table_repeat_like_other_look_ups() -> None:
    """In the table of the report, and in a cache that is played."""
    bodies = [b'{"users":{"1":"x","2":"x"}}', b'{"users":{"2":"x","3":"x"}}', b'{"users":{"1":"x","3":"x"}}']
    found = read_diversity([(float(number), body) for number, body in enumerate(bodies)], timed=True)
    keys = next(stream for stream in found.streams if stream.name == "users{}")
    assert (keys.lookups, keys.distinct, keys.repeats) == (6, 3, pytest.approx(0.5))
    assert entity_field(found) == "users{}"  # what they hold is always the same
    shares = answered_shares(keys_of(bodies, "users{}"), np.arange(3.0), life_s=10.0, size=100)
    assert shares.tolist() == [0.0, 0.5, 1.0]


def test_what_comes_late_is_read_as_what_came_first() -> None:
    """The shapes are learned from the first payloads; the others are streamed."""
    payloads = [{"users": {str(number): 1}} for number in range(700)]
    assert names_of(*payloads) == ["users.*", "users{}"]
