"""One logged request, as a line of JSON: made from what has ended, with fields hashed or dropped, and read back.

Values lose nothing: NaN, infinities, integers of any size, bytes that are no text. JSON has no word for these. Among
the values of rows, entities and predictions each stands as an object with one key: ``{"$float": "NaN"}``,
``{"$bytes": base64}``, ``{"$hmac": hex}`` of a value that was hashed; and ``{"$object": {...}}`` around an object of
the client's whose only key begins with "$". In a tensor's flat data, whose datatype is known, NaN and infinities are
the texts "NaN", "Infinity" and "-Infinity", as in the JSON mapping of protobuf
(https://protobuf.dev/programming-guides/json/). Numbers are written with the fewest digits that read back as the same
double; those of FP16 and FP32 are doubles without loss.

A field is named by its path: the keys from a row down, joined by dots, or an input's or output's name, and behind it a
column's. A name of the manifest means every field whose path is the name, or ends with a dot and the name: "email" is
every field of that name, "user.email" only the one under "user". What lies under a field goes with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tailcut.common.json_values import UNREADABLE, decode
from tailcut.common.tensors import DATATYPE_OF, NUMPY_OF, Array, Arrays
from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import StartError
from tailcut.manifest import Deployment
from tailcut.observe.outcomes import CODES
from tailcut.observe.request_log.capture import Capture

NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

HASHED = "$hmac"
_FLOAT, _BYTES, _OBJECT = "$float", "$bytes", "$object"


def scalar_to_json(value: Any) -> Any:
    """Return a text, a number or bytes as a value that JSON has; see the module. Others stay as they are."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: _word(value)}
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
        value = value.encode("utf-8", "surrogatepass")
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def from_json(value: Any) -> Any:
    """Return a value as it was before it was written by ``Redaction.apply``; a hashed value stays as it is written.

    Raises:
        ValueError: an object of this module's own holds something else than it says.
    """
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, only), *_ = value.items()
        if key == _FLOAT:
            return not_number(only)
        if key == _BYTES:
            return _bytes(only)
        if key == _OBJECT:
            if not isinstance(only, dict):
                raise ValueError(f"{{{_OBJECT!r}: {only!r}}} holds no object")
            return {name: from_json(each) for name, each in only.items()}
    return {name: from_json(each) for name, each in value.items()}


def data_of(array: Array) -> list[Any]:
    """Return a tensor's values, flat in row-major order, as values that JSON has."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.hasobject:
        return [scalar_to_json(each) for each in flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [each if math.isfinite(each) else _word(each) for each in flat]
    return flat


def array_of(datatype: str, shape: Sequence[int], data: Sequence[Any]) -> Array:
    """Return the tensor that ``data_of`` was given; texts stay texts.

    Raises:
        ValueError: the data does not fit datatype or shape.
    """
    if datatype not in NUMPY_OF:
        raise ValueError(f"unknown datatype {datatype!r}")
    if min(shape, default=0) < 0 or len(data) != prod(shape):
        raise ValueError(f"{len(data)} values for the shape {list(shape)}")
    dtype = NUMPY_OF[datatype]
    if datatype == "BYTES":
        texts = np.empty(len(data), dtype=object)
        texts[:] = [from_json(each) for each in data]
        return texts.reshape(shape)
    if dtype.kind == "f":
        data = [not_number(each) if isinstance(each, str) else each for each in data]
        with np.errstate(over="ignore"):
            return np.array(data, np.float64).astype(dtype).reshape(shape)
    return np.array(data, dtype).reshape(shape)


def not_number(word: Any) -> float:
    """Return NaN or an infinity; raises ValueError for another word."""
    if not isinstance(word, str) or word not in NOT_NUMBERS:
        raise ValueError(f"{word!r} is none of {', '.join(NOT_NUMBERS)}")
    return NOT_NUMBERS[word]


def datatype_of(array: Array) -> str:
    """Return the Open Inference Protocol's name of an array's type."""
    return "BYTES" if array.dtype.kind in "OSU" else DATATYPE_OF.get(array.dtype, str(array.dtype))


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"{{{_BYTES!r}: {text!r}}} is no base64") from None


# -- Fields that are hashed or dropped ---------------------------------------------------------------------------------


LEAST_KEY_BYTES = 16
_ENVIRONMENT = "env:"
_DIGEST_BYTES = 16
"""Of the 32: equal hashes of different values are expected after some 2**64 values only."""

DROPPED = object()
"""Stands for a value that is not written."""


class Redaction:
    """Hashes and drops fields by name; remembers nothing.

    Args:
        hashed, dropped: names; see the module.
        key: of the hashes.
    """

    def __init__(self, hashed: Sequence[str], dropped: Sequence[str], key: bytes = b"") -> None:
        self._hashed, self._dropped = tuple(hashed), tuple(dropped)
        self._key = key
        self._known: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return "hash", "drop" or "" for a field's path."""
        found = self._known.get(path)
        if found is None:
            if len(self._known) > 10_000:  # keys of rows may be data
                self._known.clear()
            drop, hashes = _named(path, self._dropped), _named(path, self._hashed)
            found = self._known[path] = "drop" if drop else "hash" if hashes else ""
        return found

    def apply(self, value: Any, path: str, found: Mapping[str, set[str]]) -> Any:
        """Return a value of rows, entities or predictions as it is written, or ``DROPPED``.

        Args:
            value: of Python's own types.
            path: of the value.
            found: "hash" and "drop" to the paths of the fields that were; added to.
        """
        if what := self.of(path):
            found[what].add(path)
            return DROPPED if what == "drop" else self.hashed(value)
        if isinstance(value, list | tuple):
            return [self.apply(each, path, found) for each in value]
        if isinstance(value, dict):
            kept = {str(key): self.apply(each, f"{path}.{key}", found) for key, each in value.items()}
            kept = {key: each for key, each in kept.items() if each is not DROPPED}
            return {_OBJECT: kept} if len(kept) == 1 and next(iter(kept)).startswith("$") else kept
        return scalar_to_json(value)

    def hashed(self, value: Any) -> dict[str, str]:
        """Return what stands for a value that is hashed; see ``digest``."""
        return {HASHED: self.digest(value)}

    def digest(self, value: Any) -> str:
        """Return the keyed hash of a value, 32 hexadecimal digits; equal values have equal ones.

        Values are equal as JSON's are: 1 and 1.0, a text and its UTF-8 bytes; true is no 1, and the text "1" is no 1.
        """
        return hmac.new(self._key, canonical(value), hashlib.sha256).digest()[:_DIGEST_BYTES].hex()


def canonical(value: Any) -> bytes:
    """Return bytes that are equal where values are, and differ where they do."""
    found = _of_one(value)
    if found is not None:
        return found
    if isinstance(value, dict):
        parts = [
            canonical(str(key)) + canonical(each) for key, each in sorted(value.items(), key=lambda item: str(item[0]))
        ]
        return b"o%d:" % len(parts) + b"".join(parts)
    parts = [canonical(each) for each in value]
    return b"l%d:" % len(parts) + b"".join(parts)


def _of_one(value: Any) -> bytes | None:
    """Return ``canonical`` of a single value; None of an object or a list."""
    if value is None or isinstance(value, bool):
        return {None: b"n", True: b"t", False: b"f"}[value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        return f"{'i' if isinstance(value, int) else 'd'}{value!r};".encode()
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    return b"s%d:" % len(value) + value if isinstance(value, bytes) else None


def read_key(where: str, directory: Path, environment: Callable[[str], str | None] = os.environ.get) -> bytes:
    """Read the key of the hashes; see ``request_log.hash_key``.

    Raises:
        StartError: it is not there, or too short.
    """
    if where.startswith(_ENVIRONMENT):
        name = where.removeprefix(_ENVIRONMENT)
        found = environment(name)
        if found is None:
            raise StartError(
                f"request_log.hash_key: the environment variable {name} is not set",
                hint=f"export {name}=..., with at least {LEAST_KEY_BYTES} random characters",
            )
        key = found.encode()
    else:
        try:
            key = (directory / where).read_bytes().strip()
        except OSError as error:
            raise StartError(
                f"request_log.hash_key: {directory / where} cannot be read: {error.strerror}",
                hint="make one: head -c 32 /dev/urandom | base64 > FILE; or write 'env:NAME'",
            ) from error
    if len(key) < LEAST_KEY_BYTES:
        raise StartError(
            f"request_log.hash_key has {len(key)} bytes, the minimum is {LEAST_KEY_BYTES}: values could be guessed",
            hint="make one: head -c 32 /dev/urandom | base64 > FILE",
        )
    return key


def _named(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


FORM = 1
"""Of the records; a reader refuses one that it does not know."""

FIRST = b'{"tailcut_log":'
"""What every line begins with."""


class LoggedTensor(msgspec.Struct, omit_defaults=True):
    """One tensor of a request.

    Attributes:
        data: flat, in row-major order (see the module); of a hashed tensor a hash per row; None where it was dropped.
            A dropped column's values are null, a hashed one's are hashes.
    """

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None

    def array(self) -> Array:
        """Return it as an array; raises ValueError where it was hashed or dropped, or is not as its datatype says."""
        try:
            return array_of(self.datatype, self.shape, self.data or ())
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"the tensor {self.name!r}: {error}") from None


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One logged request.

    Attributes:
        tailcut_log: form of the record.
        time_ns: when the request began, nanoseconds since 1970 (UTC); of one run of the server never going back.
        offset_ns: the same, from when the log was opened.
        run: of the server process: names it and when the log was opened.
        status: HTTP's, also where the request came otherwise.
        probability: with which the request was sampled.
        deadline_ms: from its begin; ``asked_ms`` is the client's own, 0 where it asked for none.
        encoding, wanted: see ``Capture``.
        timings_ns: of the stages that took time; ``total_ns`` is their sum.
        inputs, rows, entities: what was asked; one of them, none where the request could not be read.
        outputs, predictions: the answer, where there was one; a stream's is not logged.
        hashed, dropped: fields of the input that were; ``redacted`` are those of the answer and of the rest.
    """

    tailcut_log: int
    time: str
    time_ns: int
    offset_ns: int
    run: str
    model: str
    route: str
    code: str
    status: int
    probability: float
    variant: str = ""
    version: str = ""
    cache: str = "off"
    tenant: Any = ""
    priority: int = 0
    deadline_ms: float = 0.0
    asked_ms: float = 0.0
    request_id: str = ""
    trace: str = ""
    encoding: str = ""
    wanted: list[str] = []
    total_ns: int = 0
    timings_ns: dict[str, int] = {}
    inputs: list[LoggedTensor] | None = None
    rows: list[Any] | None = None
    entities: list[Any] | None = None
    outputs: list[LoggedTensor] | None = None
    predictions: list[Any] | None = None
    hashed: list[str] = []
    dropped: list[str] = []
    redacted: list[str] = []

    @property
    def is_asked(self) -> bool:
        """Whether it says what was asked; the fields may be hashed or dropped."""
        return self.inputs is not None or self.rows is not None or self.entities is not None

    @property
    def count(self) -> int:
        """Rows or entities of the request; 0 where that is not known."""
        if self.inputs:
            return (self.inputs[0].shape or [1])[0]
        return len(self.rows or self.entities or ())

    def check(self) -> None:
        """Refuse what no server writes; raises ValueError, which says what it is."""
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability is {self.probability:g}, which is not above 0 and at most 1")
        for what in ("rows", "entities", "predictions"):
            try:
                from_json(getattr(self, what))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from None
        if not self.hashed and not self.dropped:
            self.arrays()

    def values(self) -> tuple[str, list[Any]]:
        """Return "rows" or "entities" and what the client sent as such."""
        what = "rows" if self.rows is not None else "entities"
        return what, from_json(self.rows if self.rows is not None else self.entities or [])

    def arrays(self) -> Arrays:
        """Return the inputs by name; raises ValueError as ``LoggedTensor.array``."""
        return {tensor.name: tensor.array() for tensor in self.inputs or ()}


class EndedRequest(NamedTuple):
    """A sampled request that has ended, without what would keep a variant in memory."""

    route: str
    code: str
    variant: str
    version: str
    cache: str
    tenant: str
    priority: int
    request_id: str
    start_ns: int
    total_ns: int
    deadline_ns: int
    asked_ns: int
    stages_ns: Sequence[int]
    capture: Capture


class RecordWriter:
    """Makes records of one model's requests.

    Args:
        run: see ``Record``.
        wall_ns, clock_ns: the two clocks, read at the same moment: the one that records tell, and that of timings.
    """

    def __init__(self, deployment: Deployment, redaction: Redaction, run: str, wall_ns: int, clock_ns: int) -> None:
        self._model = deployment.name
        self._redaction = redaction
        self._run = run
        self._wall_ns, self._clock_ns = wall_ns, clock_ns
        self._columns = {tensor.name: tensor.columns for tensor in deployment.model.inputs}
        self._outputs = [tensor.name for tensor in deployment.model.outputs]
        entity = deployment.features.entity
        self._entity = entity[0] if len(entity) == 1 else ""
        self._encode = msgspec.json.Encoder().encode

    def line(self, ended: EndedRequest) -> bytes:
        """Return the record of a request as a line with its end.

        Raises:
            Exception: a value that cannot be written, of the user's hook for example.
        """
        return self._encode(self._record(ended)) + b"\n"

    def _record(self, ended: EndedRequest) -> Record:
        capture, asked, rest = ended.capture, _found(), _found()
        offset_ns = ended.start_ns - self._clock_ns
        time_ns = self._wall_ns + offset_ns
        moment = datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        found = Record(
            tailcut_log=FORM,
            time=f"{moment}.{time_ns % 10**9:09}Z",
            time_ns=time_ns,
            offset_ns=offset_ns,
            run=self._run,
            model=self._model,
            route=ended.route,
            code=ended.code,
            status=200 if ended.code == "ok" else CODES.get(ended.code, 500),
            probability=capture.probability,
            variant=ended.variant,
            version=ended.version,
            cache=ended.cache,
            tenant=self._plain(ended.tenant, "tenant", rest),
            priority=ended.priority,
            deadline_ms=ended.deadline_ns / 1e6,
            asked_ms=ended.asked_ns / 1e6,
            request_id=self._plain(capture.request_id or ended.request_id, "request_id", rest),
            trace=self._plain(capture.trace, "trace", rest),
            encoding=capture.encoding,
            wanted=[] if list(capture.wanted) == self._outputs else list(capture.wanted),
            total_ns=ended.total_ns,
            timings_ns={name: ns for name, ns in zip(STAGE_NAMES, ended.stages_ns, strict=True) if ns},
        )
        self._ask(found, capture, asked)
        self._answer(found, capture, rest)
        found.hashed, found.dropped = sorted(asked["hash"]), sorted(asked["drop"])
        found.redacted = sorted(rest["hash"] | rest["drop"])
        return found

    def _plain(self, text: str, name: str, found: Mapping[str, set[str]]) -> str:
        """Return a text of the record as it is written; empty where it is dropped."""
        what = self._redaction.of(name) if text else ""
        if not what:
            return text
        found[what].add(name)
        return "" if what == "drop" else self._redaction.digest(text)

    def _ask(self, record: Record, capture: Capture, found: Mapping[str, set[str]]) -> None:
        if capture.inputs is not None:
            record.inputs = self._tensors(capture.inputs, "inputs", found)
            return
        given = capture.given if capture.given is not None else _decoded(capture.body)
        for what in ("rows", "entities"):
            values = given.get(what) if isinstance(given, Mapping) else None
            if isinstance(values, list):
                path = f"{what}.{self._entity}" if what == "entities" and self._entity else what
                kept = [self._value(each, what if isinstance(each, dict) else path, found) for each in values]
                setattr(record, what, kept)

    def _answer(self, record: Record, capture: Capture, found: Mapping[str, set[str]]) -> None:
        if capture.outputs is not None:
            record.outputs = self._tensors(capture.outputs, "outputs", found)
        if not capture.reply:
            return
        reply = _decoded(capture.reply)
        values = reply.get("predictions") if isinstance(reply, Mapping) else reply
        if isinstance(values, list):
            record.predictions = [self._value(each, "predictions", found) for each in values]

    def _value(self, value: Any, path: str, found: Mapping[str, set[str]]) -> Any:
        kept = self._redaction.apply(value, path, found)
        return None if kept is DROPPED else kept

    def _tensors(self, arrays: Arrays, what: str, found: Mapping[str, set[str]]) -> list[LoggedTensor]:
        return [self._tensor(name, array, what, found) for name, array in arrays.items()]

    def _tensor(self, name: str, array: Array, what: str, found: Mapping[str, set[str]]) -> LoggedTensor:
        path, redaction = f"{what}.{name}", self._redaction
        tensor = LoggedTensor(name, datatype_of(array), list(array.shape))
        whole = redaction.of(what) or redaction.of(path)
        if whole:
            found[whole].add(path)
            if whole == "hash":
                tensor.data = [redaction.hashed(row) for row in array.tolist()]
            return tensor
        tensor.data = data_of(array)
        columns = self._columns.get(name, ()) if what == "inputs" else ()
        if len(columns) == array[:1].size:
            for place, column in enumerate(columns):
                if how := redaction.of(f"{path}.{column}"):
                    found[how].add(f"{path}.{column}")
                    raw = array.reshape(len(array), -1)[:, place].tolist()
                    kept = [redaction.hashed(each) if how == "hash" else None for each in raw]
                    tensor.data[place :: len(columns)] = kept
        return tensor


def decode_line(line: bytes) -> Record:
    """Read a line; raises ``msgspec.DecodeError`` or ``UnicodeDecodeError`` where it is none."""
    return _DECODER.decode(line)


def _found() -> dict[str, set[str]]:
    return {"hash": set(), "drop": set()}


def _decoded(body: bytes) -> Any:
    """Return a body's values; None where it is no JSON, which the client was told."""
    if not body:
        return None
    try:
        return decode(_ANY, body)
    except UNREADABLE:
        return None


_DECODER = msgspec.json.Decoder(Record)
_ANY = msgspec.json.Decoder()
