"""One logged request, as a line of JSON: made from what has ended, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import prod
from typing import Any, NamedTuple

import msgspec

from tailcut.common.json_values import UNREADABLE, decode
from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.common.timings import STAGE_NAMES
from tailcut.manifest import Deployment
from tailcut.observe.outcomes import CODES
from tailcut.observe.request_log.capture import Capture
from tailcut.observe.request_log.values import DROPPED, Redaction, array_of, data_of, datatype_of, from_json, not_number

FORM = 1
"""Of the records; a reader refuses one that it does not know."""

FIRST = b'{"tailcut_log":'
"""What every line begins with."""


class LoggedTensor(msgspec.Struct, omit_defaults=True):
    """One tensor of a request.

    Attributes:
        data: flat, in row-major order (see ``values``); of a hashed tensor a hash per row; None where it was dropped.
            A dropped column's values are null, a hashed one's are hashes.
    """

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None

    def check(self) -> None:
        """Refuse values of a whole tensor that are not as shape and datatype say; raises ValueError."""
        data = self.data or ()
        if self.datatype not in NUMPY_OF:
            raise ValueError(f"the tensor {self.name!r} has the unknown datatype {self.datatype!r}")
        if any(each < 0 for each in self.shape) or len(data) != prod(self.shape):
            raise ValueError(f"the tensor {self.name!r} has {len(data)} values for the shape {self.shape}")
        try:
            for each in data:
                if isinstance(each, str) and self.datatype.startswith("FP"):
                    not_number(each)
                elif isinstance(each, dict):
                    from_json(each)
        except ValueError as error:
            raise ValueError(f"the tensor {self.name!r}: {error}") from None

    def array(self) -> Array:
        """Return it as an array; raises ValueError where it was hashed or dropped."""
        return array_of(self.datatype, self.shape, self.data or ())


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
            for tensor in self.inputs or ():
                tensor.check()

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
