"""Queries are put behind `keys` without touching what is not ours."""

from __future__ import annotations

import pytest

from tailcut.errors import StartError
from tailcut.features.sources.sql import (
    columns_problem,
    compile_query,
    mentions_keys,
    postgres_keys,
    selected,
    sqlite_keys,
    without_text,
)


def postgres(sql: str, first: int = 3):
    return compile_query(sql, "postgresql", first, "here")


def test_parameters_are_numbered_by_first_use_and_typed() -> None:
    query = postgres("SELECT :tenant, :now, :tenant FROM keys")
    assert query.rest == "SELECT $3::text, $4::double precision, $3::text FROM keys"
    assert query.parameters == ("tenant", "now")


def test_sqlite_parameters_follow_the_keys() -> None:
    query = compile_query("SELECT :now FROM keys;", "sqlite", 2, "here")
    assert (query.rest, query.parameters) == ("SELECT ?2 FROM keys", ("now",))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ':now', x::text FROM keys",
        "SELECT 'it''s :now' FROM keys",
        r"SELECT E'it\'s :now' FROM keys",
        'SELECT ":now" FROM keys',
        "SELECT 1 -- :nothing ' here\nFROM keys",
        "SELECT 1 /* :nothing\n ' */ FROM keys",
        "SELECT $$ :nothing $1 $$, $a$ ' :x $a$ FROM keys",
        "SELECT a ? 'b' FROM keys",
        "SELECT a[1:2] FROM keys",
    ],
)
def test_text_comments_quotes_and_casts_are_left_alone(sql) -> None:
    query = postgres(sql)
    assert (query.rest, query.parameters) == (sql, ())


def test_a_cast_of_a_parameter_stays_a_cast() -> None:
    assert postgres("SELECT :now::int FROM keys").rest == "SELECT $3::double precision::int FROM keys"


@pytest.mark.parametrize("sql", ["SELECT :nwo FROM keys", "SELECT $1 FROM keys"])
def test_unknown_and_numbered_parameters_are_refused(sql) -> None:
    with pytest.raises(StartError, match=r"here uses the .*parameter"):
        postgres(sql)


def test_question_marks_are_refused_in_sqlite() -> None:
    with pytest.raises(StartError, match="numbered parameter"):
        compile_query("SELECT ? FROM keys", "sqlite", 2, "here")


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT 1", "WITH K\nSELECT 1"),
        ("with a AS (SELECT 1) SELECT 2", "with K, a AS (SELECT 1) SELECT 2"),
        ("WITH RECURSIVE a AS (SELECT 1) SELECT 2", "WITH RECURSIVE K, a AS (SELECT 1) SELECT 2"),
        ("-- why\n/* and how */ WITH a AS (SELECT 1) SELECT 2", "WITH K, a AS (SELECT 1) SELECT 2"),
        ("WITHIN", "WITH K\nWITHIN"),
        ("SELECT 1 -- end", "WITH K\nSELECT 1 -- end"),
        ("SELECT 1 ; ", "WITH K\nSELECT 1"),
    ],
)
def test_keys_go_in_front_of_a_with(sql, text) -> None:
    assert postgres(sql).behind("K") == text


def test_a_query_can_stand_alone() -> None:
    assert postgres("SELECT 1").alone() == "SELECT 1"
    assert postgres("WITH a AS (SELECT 1) SELECT 2").alone() == "WITH a AS (SELECT 1) SELECT 2"


def test_the_keys_relation_quotes_its_columns() -> None:
    assert postgres_keys(("a", 'b"c'), ("text[]", "bigint[]")) == (
        'keys("a", "b""c") AS (SELECT * FROM unnest($1::text[], $2::bigint[]))'
    )
    assert sqlite_keys(("a", "b")) == (
        "keys(\"a\", \"b\") AS (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1))"
    )


def test_keys_in_text_do_not_count_as_mentioned() -> None:
    assert mentions_keys("SELECT * FROM t JOIN KEYS USING (id)")
    assert not mentions_keys("SELECT 'keys' FROM t -- keys")
    assert not mentions_keys("SELECT monkeys FROM t")


def test_text_and_comments_are_blanked_and_quoted_names_stay() -> None:
    sql = """SELECT 'a = b' FROM "a b" -- c = d\nWHERE x = "y" """
    assert without_text(sql) == """SELECT   FROM "a b"  \nWHERE x = "y" """


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (["id", "a"], ""),
        (["x", "a", "y", "id", "x"], ""),
        (["id"], 'does not return the column "a"; it returns id'),
        (["id", "a", "a"], 'returns more than once the column "a"; it returns id, a, a'),
        (["a", "id", "b", "id"], 'returns more than once the column "id"; it returns a, id, b, id'),
        ([], 'does not return the column "id"; it returns no columns'),
    ],
)
def test_missing_and_double_columns_are_named_and_others_ignored(found, text) -> None:
    assert columns_problem(found, ("id", "a")) == text


def test_columns_are_selected_by_name_whatever_the_query_ends_with() -> None:
    inner = "SELECT * FROM t -- all"
    assert selected(inner, ["id", 'a"b']) == (
        'SELECT tailcut."id", tailcut."a""b" FROM (\nSELECT * FROM t -- all\n) AS tailcut'
    )
