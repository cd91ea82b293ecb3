"""A key is one key however it is sent: in every type of column, from every source, in every cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.app_kit import deployment, running
from tests.features_kit import group
from tests.integration.servers import pgbouncer
from tests.integration.sql_kit import Database, Postgres, Sqlite, ask, postgres_database, serve

from tailcut.errors import BadRequest, FeatureUnavailable, StartError, UnknownEntity

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
MOMENT = "2026-01-31T10:00:00+00:00"

# Type of the column; the row's key in SQL; how it may be sent; what must be refused; another key, without a row.
POSTGRES = {
    "smallint": ("42", [42, "42", 42.0], [True, " 42", "042", 42.5, "abc", 2**63], 7),
    "integer": ("42", [42, "42", 42.0], [True, "42.0", "4_2"], 2**40),
    "bigint": (f"{2**60 + 1}", [2**60 + 1, str(2**60 + 1)], [1e30, True], 2**60),
    "numeric": ("42.50", [42.5, "42.5", "42.500"], [True, " 42.5", "nan"], "42.51"),
    "numeric(9, 2)": ("42", [42, "42", 42.0, "42.00"], [True, "x"], 42.01),
    "double precision": ("42.5", [42.5, "42.5", "4.25e1"], [True, "inf", "x"], 42),
    "text": ("'42'", [42, "42", 42.0], [True, 42.5], " 42"),
    "varchar(9)": ("'42 '", ["42 "], [True], 42),
    "char(9)": ("'42'", [42, "42", "42   ", 42.0], [True], " 42"),
    "uuid": (f"'{UUID}'", [UUID, UUID.upper(), UUID.replace("-", "")], [42, "42", True], UUID.replace("a", "b")),
    "date": ("'2026-01-31'", ["2026-01-31"], ["20260131", "2026-02-30", 20260131], "2026-01-30"),
    "timestamp": (
        "'2026-01-31 10:00'",
        ["2026-01-31T10:00:00", "2026-01-31 10:00", "2026-01-31T10:00:00.000"],
        [MOMENT, "2026-01-31"],
        "2026-01-31T10:00:01",
    ),
    "timestamptz": (
        f"'{MOMENT}'",
        [MOMENT, "2026-01-31T12:00:00+02:00", "2026-01-31 10:00Z"],
        ["2026-01-31T10:00:00"],
        "2026-01-31T10:00:00+02:00",
    ),
    "boolean": ("true", [True], [1, "true", "t"], False),
    "known": ("42", [42, "42", 42.0], [True, "x"], 43),
}
SQLITE = {
    "INTEGER": ("42", [42, "42", 42.0], [True, " 42", "042", 42.5, "abc"], 7),
    "BIGINT": ("42", [42, "42", 42.0], [True, " 42"], 7),
    "TEXT": ("'42'", [42, "42", 42.0], [True, 42.5], " 42"),
    "VARCHAR(9)": ("'42 '", ["42 "], [True], 42),
    "REAL": ("42.5", [42.5, "42.5"], [True, "x"], 42),
    "NUMERIC": ("42", [42, "42", 42.0, "42.0"], [True, " 42", "x"], 43),
    "DATE": ("'2026-01-31'", ["2026-01-31"], [True, " 1"], 20260131),
    "UUID": ("'42'", [42, "42", 42.0], [True, " 42", "+42"], "43"),
    "BOOLEAN": ("1", [True], [1, "1"], False),
    "": ("42", [42, 42.0], [True], "42"),
    "BLOB": ("'42'", ["42"], [True], 42),
}
TABLES = ("CREATE TABLE people(id {0}, age int)", "CREATE TABLE blocked(id {0}, risk int)")
CASES = [("postgresql", kind) for kind in POSTGRES] + [("sqlite", kind) for kind in SQLITE]


@pytest.fixture(scope="module")
def direct(postgres) -> Iterator[Postgres]:
    with postgres_database(postgres, "keys") as database:
        database.run("CREATE EXTENSION citext", "CREATE DOMAIN known AS bigint CHECK (value > 0)")
        yield database


def made(direct: Postgres, tmp_path, kind: str, key: str, which: str) -> Database:
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    for name in ("people", "blocked"):
        database.run(f"DROP TABLE IF EXISTS {name}")
    database.run(*(table.format(kind) for table in TABLES))
    for name, value in (("people", 30), ("blocked", 9)):
        database.run(f"INSERT INTO {name} VALUES ({key}, {value})", f"CREATE UNIQUE INDEX {name}_id ON {name}(id)")
    return database


def groups(sql: str):
    return (
        group("user", sql=sql, columns=("age",), defaults={"age": 0}),
        group(
            "list", preload=True, preload_sql="SELECT id, risk FROM blocked", columns=("risk",), defaults={"risk": 0}
        ),
        group("seen", columns=("times",)),
    )


@pytest.mark.parametrize("cache", ["off", "memory", "redis"])
@pytest.mark.parametrize(("which", "kind"), CASES)
def test_a_key_is_its_row_however_it_is_sent_or_refused(direct, tmp_path, redis, which, kind, cache) -> None:
    key, sent, refused, other = (POSTGRES if which == "postgresql" else SQLITE)[kind]
    database = made(direct, tmp_path, kind, key, which)
    asked: list[object] = []

    def seen(keys, context):
        asked.extend(key[0] for key in keys)
        return [{"times": 1}] * len(keys)

    async def test(service) -> None:
        forms = set()
        for value in (*sent, {"id": sent[-1]}, *reversed(sent)):
            row = (await ask(service, value))[0]
            assert (row["age"], row["risk"]) == (30, 9), value
            forms.add((row["id"], type(row["id"])))
        assert len(forms) == 1, "the row holds one form, whoever asked first"
        assert {(value, type(value)) for value in asked} == forms, "a function is given the same"
        if cache != "off":
            assert [one.source_keys for one in service.statistics().groups if one.name != "list"] == [1, 1]
        row = (await ask(service, other, sent[0]))[0]
        assert (row["age"], row["risk"]) == (0, 0)
        for value in refused:
            with pytest.raises(BadRequest, match='entity field "id" is') as caught:
                await ask(service, value)
            assert caught.value.hint

    ways = ["SELECT id, age FROM keys JOIN people USING (id)"]
    ways += ["SELECT k.id, p.age FROM keys AS k JOIN people p ON p.id = k.id"]
    ways += ["SELECT people.id, age FROM people WHERE id IN (SELECT id FROM keys)"]
    for sql in ways if cache == "memory" else ways[:1]:
        asked.clear()
        serve(
            database.url,
            test,
            *groups(sql),
            functions={"seen": seen},
            cache=cache,
            redis=redis.url if cache == "redis" else "",
            redis_timeout_s=1.0,
        )
        if cache == "redis":
            redis.empty()


def test_through_a_pooler_all_types_are_the_same(direct, tmp_path) -> None:
    with pgbouncer(direct.direct, "transaction") as url:
        for kind, (key, sent, refused, _) in POSTGRES.items():
            made(direct, tmp_path, kind, key, "postgresql")

            async def test(service, sent=sent, refused=refused) -> None:
                for value in sent:
                    assert (await ask(service, value))[0]["age"] == 30
                with pytest.raises(BadRequest):
                    await ask(service, refused[0])

            sql = "SELECT people.id, age FROM keys JOIN people USING (id)"
            serve(url, test, group(sql=sql, columns=("age",)))


def test_a_column_that_holds_mixed_types_keeps_them_apart(tmp_path) -> None:
    database = Sqlite(tmp_path / "app.db")
    database.run("CREATE TABLE t(id, value)", "INSERT INTO t VALUES (42, 'number'), ('42', 'text'), (1.5, 'fraction')")

    async def test(service) -> None:
        rows = await ask(service, 42, "42", 42.0, 1.5)
        assert [row["value"] for row in rows] == ["number", "text", "number", "fraction"]
        with pytest.raises(BadRequest):
            await ask(service, True)
        with pytest.raises(UnknownEntity):
            await ask(service, "1.5")

    serve(database.url, test, group(sql="SELECT t.id, value FROM keys JOIN t USING (id)"))
    serve(database.url, test, group(preload=True, preload_sql="SELECT id, value FROM t"))


DEPLOYMENT = """
[features]
entity = ["id"]
database = "{url}"
cache = "{cache}"
redis = "{redis}"
redis_timeout = "1s"
[[features.groups]]
name = "user"
key = ["id"]
columns = ["value"]
ttl = "1m"
sql = "SELECT id, value FROM keys JOIN users USING (id)"
[cache.entity]
enabled = true
shared = {shared}
"""


@pytest.mark.parametrize("cache", ["memory", "redis"])
@pytest.mark.parametrize("which", ["postgresql", "sqlite"])
def test_an_answer_is_cached_once_however_its_entity_is_sent(direct, tmp_path, redis, which, cache) -> None:
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    database.run("DROP TABLE IF EXISTS users", "CREATE TABLE users(id integer PRIMARY KEY, value float)")
    database.run("INSERT INTO users VALUES (42, 30)")

    shared = "true" if cache == "redis" else "false"

    async def main() -> None:
        manifest = deployment(
            tmp_path, DEPLOYMENT.format(url=database.url, cache=cache, redis=redis.url, shared=shared)
        )
        async with running(manifest) as client:
            for entity, found in ((42, "miss"), ("42", "hit"), (42.0, "hit"), ({"id": "42"}, "hit")):
                answer = await client.post("/predict/m", {"entities": [entity]})
                assert answer.json["predictions"][0]["y"] == 72.0
                assert answer.headers["x-tailcut-cache"] == found
            for entity in (True, " 42", 42.5, "x"):
                answer = await client.post("/predict/m", {"entities": [entity]})
                assert (answer.status, answer.json["code"]) == (400, "bad_request")
                assert 'entity field "id" is' in answer.json["error"]
                assert "which is no bigint" in answer.json["error"]
            database.run("ALTER TABLE users RENAME COLUMN value TO amount", "INSERT INTO users VALUES (43, 1)")
            answer = await client.post("/predict/m", {"entities": [43]})
            assert (answer.status, answer.json["code"]) == (503, "feature_unavailable")
            assert 'feature group "user"' in answer.json["error"]
            assert "value" in answer.json["error"]

    asyncio.run(main())


@pytest.mark.parametrize("which", ["postgresql", "sqlite"])
def test_keys_of_several_columns_each_have_their_own_type(direct, tmp_path, which) -> None:
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    database.run("DROP TABLE IF EXISTS visits", "CREATE TABLE visits(shop text, id bigint, day date, value int)")
    database.run("INSERT INTO visits VALUES ('7', 42, '2026-01-31', 3), ('7', 43, '2026-01-31', 4)")

    async def test(service) -> None:
        for shop, id_ in ((7, 42), ("7", "42"), (7.0, 42.0)):
            entities = [{"shop": shop, "id": key, "day": "2026-01-31"} for key in (id_, 43)]
            assert [row["value"] for row in await ask(service, *entities)] == [3, 4]
        assert service.statistics().groups[0].source_keys == 2
        with pytest.raises(BadRequest, match="field \"id\" is 'x', which is no bigint"):
            await ask(service, {"shop": 7, "id": "x", "day": "2026-01-31"})

    sql = "SELECT v.* FROM keys k JOIN visits v ON (v.shop, v.id, v.day) = (k.shop, k.id, k.day)"
    if which == "sqlite":
        sql = "SELECT v.* FROM keys k JOIN visits v ON v.shop = k.shop AND v.id = k.id AND v.day = k.day"
    serve(database.url, test, group(sql=sql, key=("shop", "id", "day")), entity=("shop", "id", "day"))


@pytest.mark.parametrize("which", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k.id, seats FROM keys k JOIN planes p ON p.tail = k.id",
        "SELECT keys.id, seats FROM planes JOIN keys ON keys.id = planes.tail",
        "SELECT tail AS id, seats FROM planes WHERE tail IN (SELECT id FROM keys)",
    ],
)
def test_a_column_of_the_keys_name_that_is_not_compared_is_not_its_type(direct, tmp_path, which, sql) -> None:
    """A number, which has nothing to do with it. In SQLite a key from ``keys`` has no type here, but that declared."""
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    database.run("DROP TABLE IF EXISTS planes", "CREATE TABLE planes(id integer, tail text, seats int)")
    database.run("INSERT INTO planes VALUES (7, 'N1', 100), (8, '42', 200)")

    async def test(service) -> None:
        assert [row["seats"] for row in await ask(service, "N1", 42, "42")] == [100, 200, 200]
        assert service.statistics().groups[0].source_keys == 2

    declared = {"id": "text"} if which == "sqlite" else None
    serve(database.url, test, group(sql=sql, columns=("seats",)), declared=declared)
    if which == "sqlite":  # each form is a key of its own, and finds its row

        async def undeclared(service) -> None:
            assert [row["seats"] for row in await ask(service, "N1", 42, "42")] == [100, 200, 200]

        serve(database.url, undeclared, group(sql=sql, columns=("seats",)))


@pytest.mark.parametrize("which", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT keys.id, seats FROM keys JOIN planes ON 'N' || planes.id = keys.id",
        "SELECT 'N' || planes.id AS id, seats FROM keys k JOIN planes ON k.id = 'N' || planes.id",
        "SELECT 'N' || id AS id, seats FROM planes WHERE 'N' || id IN (SELECT id FROM keys)",
    ],
)
def test_the_type_is_not_that_of_a_column_that_only_leads_to_what_is_compared(direct, tmp_path, which, sql) -> None:
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    database.run("DROP TABLE IF EXISTS planes", "CREATE TABLE planes(id integer, seats int)")
    database.run("INSERT INTO planes VALUES (7, 100), (8, 200)")

    async def test(service) -> None:
        assert [row["seats"] for row in await ask(service, "N8", "N7")] == [200, 100]

    serve(database.url, test, group(sql=sql, columns=("seats",)))
    preloaded = "SELECT 'N' || id AS id, seats FROM planes"
    serve(database.url, test, group(preload=True, preload_sql=preloaded, columns=("seats",)))


@pytest.mark.parametrize("which", ["postgresql", "sqlite"])
def test_a_key_that_is_a_column_of_another_group_is_brought_into_its_type(direct, tmp_path, which) -> None:
    """A float column that holds whole numbers, as pandas writes integers beside missing ones, leads to integers."""
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    for name in ("orders", "shops"):
        database.run(f"DROP TABLE IF EXISTS {name}")
    database.run("CREATE TABLE orders(id bigint, shop double precision)", "CREATE TABLE shops(shop integer, stars int)")
    database.run("INSERT INTO orders VALUES (1, 5.0), (2, NULL), (3, 5.5)", "INSERT INTO shops VALUES (5, 4)")

    async def test(service) -> None:
        assert [row["stars"] for row in await ask(service, 1, 2)] == [4, 0]
        with pytest.raises(FeatureUnavailable, match=r'its key "shop" is 5\.5, which is no bigint'):
            await ask(service, 3)

    first = group("order", columns=("shop",), sql="SELECT orders.* FROM keys JOIN orders USING (id)")
    for second in (
        {"sql": "SELECT shop, stars FROM keys JOIN shops USING (shop)"},
        {"preload": True, "preload_sql": "SELECT * FROM shops"},
    ):
        spec = group("shop", key=("shop",), columns=("stars",), defaults={"stars": 0}, **second)
        serve(database.url, test, first, spec)


def test_groups_with_other_types_for_one_field_find_the_same_user(direct) -> None:
    for name in ("numbers", "texts", "padded"):
        direct.run(f"DROP TABLE IF EXISTS {name}")
    direct.run("CREATE TABLE numbers(id bigint, a int)", "INSERT INTO numbers VALUES (42, 1)")
    direct.run("CREATE TABLE texts(id text, b int)", "INSERT INTO texts VALUES ('42', 2)")
    direct.run("CREATE TABLE padded(id char(5), c int)", "INSERT INTO padded VALUES ('42', 3)")
    specs = [
        group("a", columns=("a",), sql="SELECT id, a FROM keys JOIN numbers USING (id)", defaults={"a": 0}),
        group("b", columns=("b",), sql="SELECT texts.id, b FROM keys JOIN texts USING (id)", defaults={"b": 0}),
        group("c", columns=("c",), preload=True, preload_sql="SELECT id, c FROM padded", defaults={"c": 0}),
    ]

    async def test(service) -> None:
        for value in (42, "42", 42.0):
            assert (await ask(service, value))[0] == {"id": 42, "a": 1, "b": 2, "c": 3}

    serve(direct.url, test, *specs)
    direct.run("DROP TABLE texts", "CREATE TABLE texts(id uuid, b int)")
    with pytest.raises(StartError, match='the field "id" is a key of several types: bigint in a, uuid in b, char in c'):
        serve(direct.url, test, *specs)


def test_a_declared_type_is_the_keys_where_nothing_else_tells_it(direct) -> None:
    sql = "SELECT keys.id, keys.id / 4 AS value FROM keys"

    async def as_number(service) -> None:
        for value in (42, "42", 42.0):
            assert (await ask(service, value))[0]["value"] == 10.5

    async def as_integer(service) -> None:
        for value in (42, "42", 42.0):
            assert (await ask(service, value))[0]["value"] == 10

    serve(direct.url, as_number, group(sql=sql), declared={"id": "number"})
    serve(direct.url, as_integer, group(sql=sql), declared={"id": "integer"})
    direct.run("DROP TABLE IF EXISTS t", "CREATE TABLE t(id bigint, value int)")
    with pytest.raises(StartError, match='"id" is declared as text, but the key is bigint in g'):
        serve(
            direct.url,
            as_number,
            group(sql="SELECT id, value FROM keys JOIN t USING (id)"),
            declared={"id": "text"},
        )


def test_a_type_that_no_key_can_have_is_refused_with_the_way_out(direct) -> None:
    async def test(service) -> None:
        assert (await ask(service, "10.0.0.1"))[0]["value"] == 1

    direct.run("DROP TABLE IF EXISTS hosts", "CREATE TABLE hosts(id inet, value int)")
    direct.run("INSERT INTO hosts VALUES ('10.0.0.1', 1)")
    with pytest.raises(StartError, match="column of type inet, which a key cannot have") as caught:
        serve(direct.url, test, group(sql="SELECT keys.id, value FROM keys JOIN hosts USING (id)"))
    assert "cast the column" in caught.value.hint
    serve(direct.url, test, group(sql="SELECT keys.id, value FROM keys JOIN hosts h ON host(h.id) = keys.id"))


def test_a_table_from_a_function_has_the_types_of_its_values() -> None:
    tables = {"numbers": [{"id": 42, "a": 1}], "texts": [{"id": "42", "b": 2}]}
    functions = {name: (lambda keys, context, name=name: tables[name]) for name in tables}

    async def test(service) -> None:
        for value in (42, "42", 42.0):
            assert {"a": 1, "b": 2}.items() <= (await ask(service, value))[0].items()
        with pytest.raises(BadRequest, match=r'"id" is True, which is no bigint, as feature group "numbers" has it'):
            await ask(service, True)

    specs = [
        group(name, columns=(column,), preload=True, defaults={column: 0})
        for name, column in (("numbers", "a"), ("texts", "b"))
    ]
    serve("", test, *specs, functions=functions)


@pytest.mark.parametrize("which", ["function", "sqlite"])
def test_a_table_that_is_empty_at_the_start_gets_its_type_with_its_first_rows(tmp_path, which) -> None:
    """An expression has no type in SQLite, and a function's result none either."""
    table: list[dict[str, object]] = []
    database = Sqlite(tmp_path / "app.db")
    database.run("CREATE TABLE blocked(number int, value int)")
    spec = {"preload_sql": "SELECT number + 0 AS id, value FROM blocked"} if which == "sqlite" else {}

    async def test(service) -> None:
        assert [row["value"] for row in await ask(service, 42, "42", "x")] == [0, 0, 0]
        table.append({"id": 42, "value": 9})
        database.run("INSERT INTO blocked VALUES (42, 9)")
        async with asyncio.timeout(10):
            while (await ask(service, 42))[0]["value"] == 0:
                await asyncio.sleep(0.01)
        assert [row["value"] for row in await ask(service, 42, "42", 42.0)] == [9, 9, 9]
        with pytest.raises(BadRequest):
            await ask(service, True)

    table_group = group(preload=True, ttl="20ms", stale_for_s=60.0, defaults={"value": 0}, **spec)
    serve(database.url, test, table_group, functions={"g": lambda keys, context: list(table)})


def test_the_database_alone_says_which_letters_are_the_same_without_their_case(direct) -> None:
    """Python's lower() is not that of the locale: in this one the stored keys are no lower case of themselves."""
    direct.run("DROP TABLE IF EXISTS t", "CREATE TABLE t(id citext PRIMARY KEY, value int)")
    direct.run("INSERT INTO t VALUES ('Ada', 1), ('\u039f\u0394\u039f\u03a3', 2), ('\u0130ZM\u0130R', 3)")

    async def test(service) -> None:
        keys = ["Ada", "ADA", "ada", "\u039f\u0394\u039f\u03a3", "\u0130ZM\u0130R"]
        assert [row["value"] for row in await ask(service, *keys, "x")] == [1, 1, 1, 2, 3, 0]
        with pytest.raises(BadRequest):
            await ask(service, True)

    serve(direct.url, test, group(sql="SELECT k.id, value FROM keys k JOIN t ON t.id = k.id", defaults={"value": 0}))


@pytest.mark.parametrize(
    ("which", "column", "what", "form"),
    [
        ("postgresql", "citext", "is of type citext", "lower(id::text)"),
        ("postgresql", "text COLLATE caseless", "has the collation .*caseless", 'lower(id) COLLATE "C"'),
        ("postgresql", "char(3) COLLATE caseless", "has the collation .*caseless", 'lower(id) COLLATE "C"'),
        ("sqlite", "TEXT COLLATE NOCASE", "has another collation than BINARY", "lower(id)"),
        ("sqlite", "TEXT PRIMARY KEY COLLATE NOCASE", "has another collation than BINARY", "lower(id)"),
        ("sqlite", "VARCHAR(9) COLLATE RTRIM", "has another collation than BINARY", "lower(id)"),
        ("sqlite", "COLLATE NOCASE", "has another collation than BINARY", "lower(id)"),
    ],
)
def test_a_table_in_memory_is_refused_where_the_database_takes_different_texts_for_equal(
    direct, tmp_path, which, column, what, form
) -> None:
    database: Database = direct if which == "postgresql" else Sqlite(tmp_path / "app.db")
    if which == "postgresql":
        caseless = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        database.run(f"CREATE COLLATION IF NOT EXISTS caseless {caseless}")
    database.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t(id {column}, value int)", "INSERT INTO t VALUES ('ABC', 5)")

    async def test(service) -> None:
        assert (await ask(service, "abc"))[0]["value"] == 5

    for sql in ("SELECT id, value FROM t", "SELECT * FROM t WHERE id IN (SELECT id FROM t) AND :now >= 0 ORDER BY id"):
        with pytest.raises(StartError, match=f'the key "id" of preload_sql {what}, by which') as caught:
            serve(database.url, test, group(preload=True, preload_sql=sql))
        assert f"{form} AS id" in caught.value.hint
    serve(database.url, test, group(preload=True, preload_sql=f"SELECT {form} AS id, value FROM t"))


@pytest.mark.parametrize("kind", ["integer", "bigint", "char(9)", "uuid", "timestamptz", "numeric", "citext"])
def test_no_form_of_a_key_costs_the_index(direct, kind) -> None:
    """A comparison with another type, such as bigint = double precision, would read the whole table."""
    direct.run("DROP TABLE IF EXISTS large", f"CREATE TABLE large(id {kind}, value int)")
    values = {
        "char(9)": "g::text",
        "citext": "g::text",
        "uuid": "md5(g::text)::uuid",
        "timestamptz": "to_timestamp(86400 * g)",
    }
    direct.run(f"INSERT INTO large SELECT {values.get(kind, 'g')}, g FROM generate_series(1, 20000) g")
    direct.run("CREATE UNIQUE INDEX ON large(id)", "ANALYZE large")
    sent = {"uuid": "a1d0c6e8-3f02-7327-d846-1063f4ac58a6", "timestamptz": "1970-02-12T00:00:00Z"}.get(kind, 42.0)

    async def test(service) -> None:
        scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'large'"
        before = direct.ask(scans)
        assert (await ask(service, sent))[0]["value"] == 42
        await service.close()  # a session tells of its scans at its end
        assert direct.ask(scans) == before
        assert direct.ask("SELECT idx_scan FROM pg_stat_user_indexes WHERE relname = 'large'") > 0

    serve(direct.url, test, group(sql="SELECT large.id, value FROM keys JOIN large USING (id)"))
