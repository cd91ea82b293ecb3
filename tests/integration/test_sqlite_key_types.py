"""SQLite: a key's type is that of the column it is joined with by its name, where no other of that name differs."""

from __future__ import annotations

import sqlite3

import pytest
from tests.features_kit import group
from tests.integration.sql_kit import Sqlite, ask, serve

from tailcut.features.key_types import ANY, BIGINT, MIXED, TEXT
from tailcut.features.sources.sql import compile_query, sqlite_keys
from tailcut.features.sources.sqlite import key_types

TABLES = """
CREATE TABLE texts(id TEXT, other INTEGER, v REAL);
CREATE TABLE numbers(id INTEGER, code TEXT, w REAL);
CREATE TABLE untyped(id, x REAL);
CREATE VIEW seen AS SELECT id AS who, w FROM numbers;
"""


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT keys.id, v FROM keys JOIN texts t ON t.id = keys.id JOIN numbers n ON n.id = t.other", ANY),
        ("SELECT k.id, v FROM numbers AS n, texts AS t, keys AS k WHERE k.id = t.id AND n.id = t.other", ANY),
        ("SELECT k.id, v FROM texts AS t, keys AS k WHERE k.id = t.id", TEXT),
        ("SELECT t.id, v FROM texts t JOIN keys ON keys.id = t.id JOIN numbers n ON n.id = t.other", TEXT),
        ("SELECT keys.id, w FROM keys JOIN main.numbers n ON n.id = keys.id JOIN texts ON texts.id = n.code", ANY),
        ('SELECT keys.id, x FROM keys JOIN "untyped" u ON u.id = keys.id JOIN numbers n ON n.id = u.x', ANY),
        ("SELECT keys.id, x FROM keys JOIN untyped USING (id)", MIXED),
        ("SELECT keys.id, w FROM keys JOIN seen s ON s.who = keys.id JOIN texts ON texts.other = s.who", ANY),
        ("SELECT keys.id, w FROM keys JOIN numbers USING (id)", BIGINT),
        ("SELECT keys.id, v, w FROM keys JOIN texts USING (id) JOIN numbers USING (id)", ANY),
        ("SELECT keys.id, v FROM keys JOIN texts t ON t.id = keys.id WHERE t.other = keys.id", ANY),
        ("SELECT keys.id, n.w FROM keys JOIN numbers n ON n.code = keys.id JOIN numbers m ON m.id = n.id", ANY),
        ("SELECT k.id, n.w FROM keys k, numbers n, numbers m WHERE n.code = k.id AND n.id = m.id", ANY),
        ("SELECT keys.id, n.w FROM numbers n JOIN numbers m USING (id) JOIN keys ON keys.id = n.code", ANY),
        ("SELECT keys.id, v FROM keys JOIN texts t ON 'N' || t.id = keys.id", ANY),
        (
            "WITH numbers AS (SELECT CAST(id AS text) AS id, w FROM untyped JOIN main.numbers USING (id)) "
            "SELECT keys.id, w FROM keys JOIN numbers ON numbers.id = keys.id",
            ANY,
        ),
        ("SELECT keys.id, v FROM keys JOIN (SELECT code AS id, w AS v FROM numbers) n ON n.id = keys.id", ANY),
        ("SELECT keys.id, n.v FROM keys JOIN (SELECT code AS id, w AS v FROM numbers) n USING (id)", ANY),
    ],
)
def test_the_type_is_that_of_the_columns_of_the_keys_name(tmp_path, sql, kind) -> None:
    path = str(tmp_path / "app.db")
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    connection.close()
    query = compile_query(sql, "sqlite", 2, "sql")
    assert key_types(path, query.behind(sqlite_keys(["id"])), ["[]"], ("id",), query.alone()) == (kind,)


def test_a_second_table_with_a_column_of_the_keys_name_changes_no_answer(tmp_path) -> None:
    database = Sqlite(tmp_path / "app.db")
    database.run("CREATE TABLE customers(id TEXT PRIMARY KEY, plan_id INTEGER, value REAL)")
    database.run("CREATE TABLE visitors(id, plan_id INTEGER, value REAL)")
    database.run("CREATE TABLE plans(id INTEGER PRIMARY KEY, price REAL)", "INSERT INTO plans VALUES (1, 9.5)")
    database.run("INSERT INTO customers VALUES ('C-17', 1, 5), ('0042', 1, 6), ('42', 1, 7)")
    database.run("INSERT INTO visitors VALUES ('C-17', 1, 5), ('0042', 1, 6), ('42', 1, 7), (42, 1, 8)")

    async def test(service) -> None:
        assert [row["value"] for row in await ask(service, "C-17", "0042", "42")] == [5, 6, 7]

    for table in ("customers", "visitors"):
        sql = f"SELECT keys.id, c.value FROM keys JOIN {table} c ON c.id = keys.id JOIN plans p ON p.id = c.plan_id"
        serve(database.url, test, group(sql=sql, defaults={"value": -1.0}))
