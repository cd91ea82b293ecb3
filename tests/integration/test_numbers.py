"""The table of docs/reference/numbers.md, cell by cell over sockets; and random bits through every protocol."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.docs.pages import ROOT
from tests.integration.numbers_kit import PLAIN, Lanes, Numbers, Refused, Word, caught, lanes, word_of
from tests.integration.servers import free_port
from tests.integration.serving import START_TIMEOUT_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # those of Triton's clients
]

PAGE = (ROOT / "docs" / "reference" / "numbers.md").read_text(encoding="utf-8")


def table() -> dict[str, dict[str, str]]:
    """The page's table: value -> column -> cell."""
    lines = PAGE[PAGE.index("| value |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(head) for row in rows)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


TABLE = table()


class Case(NamedTuple):
    """What a row of the table is about.

    Attributes:
        name: the input.
        value: what every form of it means; bytes and text for BYTES.
        tokens: forms that are refused where a cell of JSON or rows says so.
        strict: whether inputs and outputs do not take NaN: then ``answered`` is sent to an input that takes it, whose
            output does not.
    """

    name: str
    value: Any
    tokens: tuple[str | bytes, ...] = ()
    strict: bool = False


NAN, INF = float("nan"), float("inf")
SPECIAL = ("null", "NaN", "Infinity", "-Infinity", "1e999", "-1e999")
CASES = {
    "NaN, `allow_nan = true`": Case("f32", NAN),
    "infinity, `allow_nan = true`": Case("f32", INF),
    "minus infinity, `allow_nan = true`": Case("f32", -INF),
    "NaN, `allow_nan = false`": Case("f32", NAN, ("null", "NaN"), strict=True),
    "infinity, `allow_nan = false`": Case("f32", INF, SPECIAL[2:], strict=True),
    "null, NaN, infinity as INT64": Case("i64", None, SPECIAL),
    "null, NaN, infinity as BOOL": Case("b", None, SPECIAL),
    "null, NaN, infinity as BYTES": Case("s", None, SPECIAL, strict=True),
    "missing text, `allow_nan = true`": Case("s", ""),
    "-0.0": Case("f32", -0.0),
    "0.0": Case("f32", 0.0),
    "the smallest FP16, a subnormal": Case("f16", np.array([1], np.uint16).view(np.float16)[0]),
    "the smallest FP32, a subnormal": Case("f32", np.array([1], np.uint32).view(np.float32)[0]),
    "the smallest FP64, a subnormal": Case("f64", 5e-324),
    "65520 as FP16": Case("f16", None, ("65520", "65520.0", "-7e4")),
    "1e39 as FP32": Case("f32", None, ("1e39", "-3.5e38", "1" + "0" * 39, "1" + "0" * 400)),
    "2^53 + 1 as INT64": Case("i64", 2**53 + 1),
    "-2^63 as INT64": Case("i64", -(2**63)),
    "2^64 - 1 as UINT64": Case("u64", 2**64 - 1),
    "2^53 as FP64": Case("f64", 2.0**53),
    "2^63 as INT64": Case("i64", None, (str(2**63), str(-(2**63) - 1), "1" + "0" * 400)),
    "300 as INT8": Case("i8", 300, ("300", "-129")),
    "1.5 as INT64": Case("i64", None, ("1.5", "9007199254740993.0")),
    "1.0 as INT64": Case("i64", 1, ("1.0",)),
    "true as a number": Case("f32", 1.0, ("true",)),
    "text": Case("s", "hé\0"),
    "empty text": Case("s", ""),
    "bytes that are no UTF-8": Case("s", b"\xff", (b'"\xff"',)),
    "half a surrogate pair": Case("s", b"\xed\xa0\x80", ('"\\ud800"', b'"\xed\xa0\x80"')),
}
SHAPES = {"no rows": (0, 2), "an empty dimension": (1, 0)}
CELLS = [(row, column) for row, cells in TABLE.items() for column in cells]
IN = [cell for cell in CELLS if cell[1].endswith(" in") and cell[0] not in SHAPES]
OUT = [cell for cell in CELLS if cell[1].endswith(" out") and cell[0] not in SHAPES]


@pytest.fixture(scope="module")
def taking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """All floats take and answer NaN; text may be missing."""
    floats = {"f32", "f64"}
    with (
        Numbers(tmp_path_factory.mktemp("taking"), floats | {"s"}, floats) as server,
        lanes(server.port, server.grpc_port) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """FP16 alone, which takes and answers NaN; the model runs in a thread of its own."""
    directory, more = tmp_path_factory.mktemp("halves"), 'pool.executor="thread"'
    with (
        Numbers(directory, {"f16"}, {"f16"}, more, names=("f16",)) as server,
        lanes(server.port, server.grpc_port, server.names) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """f64 takes NaN; no output answers it. The model is in a process of its own."""
    with (
        Numbers(tmp_path_factory.mktemp("strict"), {"f64"}, set(), 'pool.executor="process"') as server,
        lanes(server.port, server.grpc_port) as found,
    ):
        yield found


ODD_SERVER = r"""
import sys
from pathlib import Path
import numpy as np
from tailcut.models import variant_loader as seating
from tailcut.manifest.host import load_host
from tailcut.transport.lifecycle import serve
from tailcut.testing.runtimes import StubRuntime

ODD = {"bytes": b"\xff", "half": "\ud800"}

def answer(inputs):
    found = {f"o_{name}": array for name, array in inputs.items()}
    found["o_s"] = np.array([[ODD.get(text, text) for text in row] for row in inputs["s"]], object)
    return found

seating.open_runtime = lambda *_, **__: StubRuntime(answer)
settings = [f"server.port={sys.argv[2]}", f"server.grpc_port={sys.argv[3]}", 'slo.timeout="10s"', "server.drain=0s"]
sys.exit(serve(load_host([Path(sys.argv[1])], overrides=settings)))
"""


@pytest.fixture(scope="module")
def odd(taking: Lanes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lanes]:
    """A model that answers bytes that are no text for "bytes", and half a surrogate pair for "half"."""
    directory = tmp_path_factory.mktemp("odd")
    for file in ("tailcut.toml", "model.onnx"):
        (directory / file).write_bytes((tmp_path_factory.getbasetemp() / "taking0" / file).read_bytes())
    ports = [str(free_port()), str(free_port())]
    log = (directory / "log").open("wb")
    process = subprocess.Popen([sys.executable, "-c", ODD_SERVER, str(directory), *ports], stderr=log, stdout=log)
    try:
        with lanes(int(ports[0]), int(ports[1])) as found:
            give_up_s = time.monotonic() + START_TIMEOUT_S
            while not found.sync.ready():
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise AssertionError((directory / "log").read_text())
                time.sleep(0.02)
            yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        log.close()


def test_the_page_and_this_file_have_the_same_rows() -> None:
    assert list(TABLE) == [*CASES, *SHAPES]


def tokens_of(cell: str) -> list[str]:
    return [token for token in cell.split("`")[1::2] if token]


def element(case: Case) -> Any:
    return case.value if case.name == "s" else PLAIN[case.name].dtype.type(case.value)


def bits(value: Any) -> Any:
    """What must be equal: bits of numbers, all NaN alike."""
    if isinstance(value, np.floating):
        return "NaN" if np.isnan(value) else (value.dtype, value.tobytes())
    return value


def code_of(found: Any) -> str:
    return found.code if isinstance(found, Refused) else "answered"


def meaning(case: Case, found: Any) -> Any:
    """What came back, in the datatype that was sent."""
    if isinstance(found, Refused):
        return found
    value = found.value if isinstance(found, Word) else found
    if case.name == "s":
        return value
    return bits(value if isinstance(value, np.generic) else PLAIN[case.name].dtype.type(value))


def answers_in(asked: Lanes, column: str, case: Case, token: str | bytes | None) -> list[Any]:
    """Send a value by every lane of a column: as this token, or as itself."""
    if token is not None:
        if column == "rows in":
            return [asked.rows(case.name, token)]
        return [asked.json_tensor(case.name, token), asked.generate(case.name, token)]
    if column == "rows in":
        return asked.predict(case.name, case.value)
    if column == "raw in":
        return asked.infer(asked.sent(case.name, case.value), case.name)
    assert column == "contents in"
    return [asked.contents(case.name, case.value)]


@pytest.mark.parametrize(("row", "column"), IN)
def test_a_value_comes_in(row: str, column: str, taking: Lanes, halves: Lanes, strict: Lanes) -> None:
    """Given the forms that a cell shows, each means the row's value; where it says 400, each is refused."""
    cell, case = TABLE[row][column], CASES[row]
    asked = strict if case.strict else halves if case.name == "f16" else taking
    forms: list[str | bytes | None] = list(case.tokens if cell == "400" else tokens_of(cell))
    if column in {"raw in", "contents in"}:
        forms = [] if cell == "-" else [None]
    elif column == "rows in" and case.value is not None and not isinstance(case.value, bytes):
        forms.append(None)  # as the clients write it
    assert forms or cell == "-"
    for form in forms:
        for found in answers_in(asked, column, case, form):
            if cell == "400":
                assert code_of(found) == "400", (form, found)
            else:
                assert meaning(case, found) == bits(element(case)), (form, found)


def answers_out(asked: Lanes, column: str, case: Case, form: str) -> list[Any]:
    if column == "raw out":
        return asked.infer(asked.sent(case.name, case.value), case.name)
    if column == "contents out":
        return [asked.contents(case.name, case.value)]
    found = [asked.json_out(case.name, case.value), asked.rows(case.name, form), asked.generate(case.name, form)]
    if case.name != "f16" and case.value not in {INF, -INF}:
        found.append(asked.triton_json(case.name, case.value))
    return found


ASKS = {"bytes that are no UTF-8": "bytes", "half a surrogate pair": "half"}


@pytest.mark.parametrize(("row", "column"), OUT)
def test_a_value_goes_out(row: str, column: str, taking: Lanes, halves: Lanes, strict: Lanes, odd: Lanes) -> None:
    """Given the row's value as an output, it is answered as the cell shows, or the request fails as the model's."""
    cell, case = TABLE[row][column], CASES[row]
    if cell == "-":
        return
    asked, wanted = halves if case.name == "f16" else taking, element(case)
    if case.strict:
        asked, case = strict, case._replace(name="f64")
    if row in ASKS:
        asked, case = odd, case._replace(value=ASKS[row])
    form = tokens_of(TABLE[row]["JSON in"])[0] if cell not in {"500", "same"} else ""
    form = form or (case.tokens[0] if case.strict else f'"{case.value}"')
    for place, found in enumerate(answers_out(asked, column, case, form)):
        if cell == "500":
            assert code_of(found) == "500", found
            continue
        assert meaning(case, found) == bits(wanted), found
        if cell != "same" and isinstance(found, Word) and (place != 1 or case.name not in {"f16", "f32"}):
            assert found == word_of(tokens_of(cell)[0])


@pytest.mark.parametrize("row", SHAPES)
def test_nothing_is_refused_alike(row: str, taking: Lanes) -> None:
    shape = SHAPES[row]
    arrays = {name: np.empty(shape, array.dtype) for name, array in taking.plain.items()}
    found = {
        "JSON in": [taking.json_tensor("f32", "", shape)],
        "raw in": taking.infer(arrays, "f32"),
        "contents in": [taking.contents("f32", 0.0, shape)],
    }
    if row == "no rows":
        found["rows in"] = [taking.post("/predict/m", '{"rows":[]}'), caught(lambda: taking.sync.predict(rows=[]))]
        found["rows in"].append(caught(lambda: taking.loop.run_until_complete(taking.aio.predict(rows=[]))))
    else:
        nothing = "{" + ",".join(f'"{name}":[]' for name in taking.plain) + "}"
        found["JSON in"].append(taking.post("/v2/models/m/generate", nothing))
        found["rows in"] = [taking.post("/predict/m", f'{{"rows":[{nothing}]}}')]
        found["rows in"].append(caught(lambda: taking.sync.predict(rows=[{name: [] for name in taking.plain}])))
    for column, got in found.items():
        assert TABLE[row][column] == "400"
        for each in got:
            assert code_of(each) == "400", (column, each)
            if column in {"JSON in", "raw in", "contents in"} and "generate" not in each.text:
                assert "expected [-1, 2]" in each.text, (column, each)
    assert {cell for column, cell in TABLE[row].items() if column.endswith(" out")} == {"-"}


# -- Beyond the table ------------------------------------------------------------------------------------------------

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
WIDTHS = {"f16": 16, "f32": 32, "f64": 64, "i8": 8, "i64": 64, "u64": 64}


@SETTINGS
@given(data=st.data())
def test_random_bits_are_the_same_bits_by_every_lane(taking: Lanes, halves: Lanes, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(WIDTHS)))
    asked = halves if name == "f16" else taking
    width = WIDTHS[name]
    some = st.integers(0, 2**width - 1) | st.integers(0, min(2**width - 1, 300))
    value = np.array([data.draw(some)], f"u{width // 8}").view(PLAIN[name].dtype)[0]
    if np.isfinite(value):
        token = repr(value.item()) if value.dtype.kind == "f" else str(value)
    else:
        token = "null" if np.isnan(value) else f"{'-' if value < 0 else ''}1e999"
    case = Case(name, value)
    found = [asked.json_tensor(name, token), asked.generate(name, token), asked.rows(name, token)]
    found += [asked.json_out(name, value), *asked.predict(name, value)]
    if name != "f16":
        found.append(asked.contents(name, value.item()))
        if not np.isinf(value):
            found.append(asked.triton_json(name, value))
    assert [meaning(case, each) for each in found] == [bits(value)] * len(found)
    raw = asked.infer(asked.sent(name, value), name)
    assert [each.tobytes() for each in raw] == [value.tobytes()] * 4, "of NaN its sign and payload, too"


@SETTINGS
@given(text=st.text(st.characters(codec="utf-8"), max_size=12))
def test_text_is_the_same_text_by_every_lane(taking: Lanes, text: str) -> None:
    found = [each("s", json.dumps(text)) for each in (taking.json_tensor, taking.generate, taking.rows)]
    found += [taking.json_out("s", text), taking.contents("s", text), taking.triton_json("s", text)]
    found += [*taking.predict("s", text), *taking.infer(taking.sent("s", text), "s")]
    case = Case("s", text)
    assert [meaning(case, each) for each in found] == [text] * len(found)


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "s"])
def test_arrays_of_any_layout_arrive_as_they_are(taking: Lanes, halves: Lanes, name: str) -> None:
    """Given arrays of the other byte order, turned, strided and read-only, the clients send the same values."""
    asked = halves if name == "f16" else taking
    dtype = PLAIN[name].dtype
    wanted = np.arange(6).reshape(3, 2).astype(dtype)
    frozen = wanted.copy()
    frozen.flags.writeable = False
    layouts = [
        wanted.astype(dtype.newbyteorder(">")),
        np.asfortranarray(wanted),
        np.repeat(wanted, 2, axis=1)[:, ::2],
        wanted[::-1].copy()[::-1],
        frozen,
    ]
    others = {each: np.repeat(array, 3, axis=0) for each, array in asked.plain.items()}
    for array in layouts:
        for ask in (asked.sync.infer, lambda *a, **n: asked.loop.run_until_complete(asked.aio.infer(*a, **n))):
            found = ask({**others, name: array}, outputs=[f"o_{name}"])[f"o_{name}"]
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, wanted)
            assert found.flags.writeable


def test_arrays_without_rows_as_a_dimension_are_refused(taking: Lanes) -> None:
    found = caught(lambda: taking.sync.infer({**taking.plain, "f32": np.array(1.0, np.float32)}))
    assert found == Refused("400", "input 'f32' is a ndarray, expected an array with rows as its first dimension")


def test_text_arrays_of_numpys_own_kinds_arrive_as_text(taking: Lanes) -> None:
    for array in (np.array([["a", "é"]]), np.array([[b"a", "é".encode()]]), np.array([["a", "é".encode()]], object)):
        assert taking.sync.infer({**taking.plain, "s": array}, outputs=["o_s"])["o_s"].tolist() == [["a", "é"]]


def test_a_row_is_read_by_itself_whatever_is_beside_it(taking: Lanes) -> None:
    """Whole numbers beside decimals or larger ones: NumPy would make doubles of all."""
    for name, values in (
        ("i64", ["9007199254740993", "2.0"]),
        ("i64", ["-9223372036854775807", "9223372036854775807"]),
        ("u64", ["9223372036854775809", "3"]),
        ("u64", ["18446744073709551615", "1.0"]),
    ):
        plain = "".join(f',"{each}":{PLAIN[each][0].tolist()}' for each in taking.plain if each not in {name, "s", "b"})
        row = f'{{"{name}":[{",".join(values)}],"s":["a","a"],"b":[true,true]{plain}}}'
        reply = taking.post("/predict/m", f'{{"rows":[{row}]}}')
        assert isinstance(reply, bytes), reply
        wanted = ",".join(value.removesuffix(".0") for value in values)
        assert f'"o_{name}":[{wanted}]'.encode() in reply
    for wrong in ("null", "9007199254740993.0", "0.5", "NaN"):
        found = taking.rows("i64", wrong)
        assert code_of(found) == "400"
        assert "which is no INT64" in found.text


def test_tritons_client_refuses_infinity_in_json_and_takes_it_raw(taking: Lanes) -> None:
    """Its JSON library refuses a number beyond a double, aloud; its default is raw."""
    with pytest.raises(ValueError, match="Number too big"):
        taking.triton_json("f32", INF)
    assert taking.infer(taking.sent("f32", INF), "f32") == [INF] * 4
