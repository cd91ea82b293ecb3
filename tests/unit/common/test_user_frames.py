"""common.user_frames: the line of an error is the user's own, neither tailcut's nor a library's."""

from __future__ import annotations

import json

from tailcut.common.units import parse_duration
from tailcut.common.user_frames import innermost, place


def caught(work) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def test_the_innermost_line_of_the_users_is_named() -> None:
    for work in (lambda: json.loads("{"), lambda: parse_duration("soon")):
        error = caught(work)
        file, _, line = place(error).rpartition(":")
        assert file == __file__
        assert int(line) == work.__code__.co_firstlineno
        assert innermost(error) != place(error)


def test_a_file_that_does_not_parse_is_named_itself() -> None:
    error = caught(lambda: compile("x = 1\ndef (", "/home/me/model.py", "exec"))
    assert place(error) == "/home/me/model.py:2"
    assert place(ValueError("never raised")) == innermost(ValueError("never raised")) == ""


def test_of_several_lines_of_the_users_the_innermost_is_named() -> None:
    def raises() -> None:
        json.loads("{")

    assert place(caught(raises)).endswith(f":{raises.__code__.co_firstlineno + 1}")
