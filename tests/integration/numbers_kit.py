"""Sends one value through every protocol of a real server, and says what came back."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto
from tests.grpc_kit import unary
from tests.integration.servers import free_port
from tests.integration.serving import HOST, Served
from tests.models.graphs import identities
from tritonclient.utils import InferenceServerException

import tailcut
from tailcut.client.tensors import encode
from tailcut.common.tensors import DATATYPE_OF
from tailcut.errors import TailcutError
from tailcut.transport.grpc.codec import _FIELD_OF
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse

KINDS = {
    "f16": ("FP16", TensorProto.FLOAT16),
    "f32": ("FP32", TensorProto.FLOAT),
    "f64": ("FP64", TensorProto.DOUBLE),
    "i8": ("INT8", TensorProto.INT8),
    "i64": ("INT64", TensorProto.INT64),
    "u64": ("UINT64", TensorProto.UINT64),
    "b": ("BOOL", TensorProto.BOOL),
    "s": ("BYTES", TensorProto.STRING),
}
PLAIN: dict[str, Any] = {
    "f16": np.array([[0.5, 0.5]], np.float16),
    "f32": np.array([[0.5, 0.5]], np.float32),
    "f64": np.array([[0.5, 0.5]], np.float64),
    "i8": np.array([[7, 7]], np.int8),
    "i64": np.array([[7, 7]], np.int64),
    "u64": np.array([[7, 7]], np.uint64),
    "b": np.array([[True, True]]),
    "s": np.array([["a", "a"]], object),
}
"""What is sent for the inputs that are not in question."""

TYPED = tuple(name for name in KINDS if name != "f16")
_STATUS = {"INVALID_ARGUMENT": "400", "INTERNAL": "500"}


class Refused(NamedTuple):
    """An error, as the table writes it, with its text."""

    code: str
    text: str


Got = Any
"""A value, or Refused."""


class Numbers(Served):
    """A model whose outputs are its inputs, on an HTTP and a gRPC port.

    Args:
        names: of the inputs, in ``KINDS``; without FP16, which has no typed field in gRPC.
        takes: names of the inputs that take NaN.
        answers: names of the inputs whose outputs may hold NaN.
    """

    def __init__(
        self, directory: Path, takes: set[str], answers: set[str], *settings: str, names: tuple[str, ...] = TYPED
    ) -> None:
        self.grpc_port, self.names = free_port(), names
        identities(directory / "model.onnx", {name: (KINDS[name][1], f"o_{name}") for name in names})
        lines = ['name = "m"', "[model]", 'source = "model.onnx"', "[serve]", 'variant = "source"']
        for table, prefix, nan in (("inputs", "", takes), ("outputs", "o_", answers)):
            for name in names:
                lines += [f"[[model.{table}]]", f'name = "{prefix}{name}"', f'datatype = "{KINDS[name][0]}"']
                lines += ["shape = [-1, 2]", f"allow_nan = {str(name in nan).lower()}"]
        (directory / "tailcut.toml").write_text("\n".join(lines))
        super().__init__(
            directory, prepared=True, settings=[f"server.grpc_port={self.grpc_port}", 'slo.timeout="10s"', *settings]
        )


class Lanes:
    """Every way to a server, on kept connections."""

    def __init__(self, http_port: int, grpc_port: int, names: tuple[str, ...]) -> None:
        self.plain = {name: PLAIN[name] for name in names}
        url = f"http://{HOST}:{http_port}"
        self.sync = tailcut.Client(url, model="m", timeout_s=30)
        self.loop = asyncio.new_event_loop()
        self.aio = tailcut.AsyncClient(url, model="m", timeout_s=30)
        self.triton_http = tritonclient.http.InferenceServerClient(f"{HOST}:{http_port}")
        self.triton_grpc = tritonclient.grpc.InferenceServerClient(f"{HOST}:{grpc_port}")
        self.channel = grpc.insecure_channel(f"{HOST}:{grpc_port}")
        self.connection = http.client.HTTPConnection(HOST, http_port, timeout=30)

    def close(self) -> None:
        self.sync.close()
        self.loop.run_until_complete(self.aio.close())
        self.loop.close()
        self.triton_http.close()
        self.triton_grpc.close()
        self.channel.close()
        self.connection.close()

    def sent(self, name: str, value: Any) -> dict[str, Any]:
        """All inputs, the second element of one replaced."""
        arrays = {each: array.copy() for each, array in self.plain.items()}
        arrays[name][0, 1] = value
        return arrays

    # -- HTTP --------------------------------------------------------------------------------------------------------

    def post(self, path: str, body: str | bytes, headers: dict[str, str] | None = None) -> bytes | Refused:
        self.connection.request("POST", path, body if isinstance(body, bytes) else body.encode(), headers or {})
        reply = self.connection.getresponse()
        raw = reply.read()
        return raw if reply.status == 200 else Refused(str(reply.status), json.loads(raw)["error"])

    def json_tensor(self, name: str, token: str | bytes, shape: tuple[int, int] = (1, 2)) -> Got:
        """infer: the value as JSON in, raw out."""
        reply = self.post("/v2/models/m/infer", self._infer_body(name, token, shape))
        return reply if isinstance(reply, Refused) else self._raw_of(reply, name)

    def _infer_body(self, name: str, token: str | bytes, shape: tuple[int, int]) -> bytes:
        tensors = []
        for each in self.plain:
            head = f'{{"name":"{each}","datatype":"{KINDS[each][0]}","shape":{list(shape)},"data":'.encode()
            data = _listed(each, token if each == name else None) if shape == (1, 2) else b"[]"
            tensors.append(head + data + b"}")
        asked = f'"parameters":{{"binary_data_output":true}},"outputs":[{{"name":"o_{name}"}}]'.encode()
        return b'{"inputs":[' + b",".join(tensors) + b"]," + asked + b"}"

    def generate(self, name: str, token: str | bytes) -> Got:
        """generate: JSON in, JSON out."""
        body = _joined({each: _listed(each, token if each == name else None) for each in self.plain})
        reply = self.post("/v2/models/m/generate", body)
        return reply if isinstance(reply, Refused) else _word(reply, lambda found: found[f"o_{name}"][1])

    def rows(self, name: str, token: str | bytes) -> Got:
        """/predict: JSON in, JSON out."""
        row = _joined({each: _listed(each, token if each == name else None) for each in self.plain})
        reply = self.post("/predict/m", b'{"rows":[' + row + b"]}")
        if isinstance(reply, Refused):
            return reply
        return _word(reply, lambda found: found["predictions"][0][f"o_{name}"][1])

    def json_out(self, name: str, value: Any) -> Got:
        """infer: raw in, JSON out."""
        headers, body = encode(self.sent(name, value), [f"o_{name}"])
        at = int(headers["inference-header-content-length"])
        head = body[:at].replace(b'"binary_data_output":true', b'"binary_data_output":false')
        headers["inference-header-content-length"] = str(len(head))
        reply = self.post("/v2/models/m/infer", head + body[at:], headers)
        return reply if isinstance(reply, Refused) else _word(reply, lambda found: found["outputs"][0]["data"][1])

    def _raw_of(self, reply: bytes, name: str) -> Any:
        at = reply.index(b"}]}") + 3
        datatype = KINDS[name][0]
        if datatype != "BYTES":
            return np.frombuffer(reply[at:], PLAIN[name].dtype)[1]
        begin = at + 4 + int.from_bytes(reply[at : at + 4], "little")
        return reply[begin + 4 :].decode()

    # -- Clients -----------------------------------------------------------------------------------------------------

    def predict(self, name: str, value: Any) -> list[Got]:
        """tailcut's clients with rows."""
        row = {each: array[0].tolist() for each, array in self.plain.items()}
        row[name][1] = value
        return [
            caught(lambda: self.sync.predict(rows=[row])[0][f"o_{name}"][1]),
            caught(lambda: self.loop.run_until_complete(self.aio.predict(rows=[row]))[0][f"o_{name}"][1]),
        ]

    def infer(self, arrays: dict[str, Any], name: str, at: tuple[int, ...] = (0, 1)) -> list[Got]:
        """tailcut's and Triton's clients with arrays, raw in and raw out."""
        output = f"o_{name}"
        return [
            caught(lambda: self.sync.infer(arrays, outputs=[output])[output][at]),
            caught(lambda: self.loop.run_until_complete(self.aio.infer(arrays, outputs=[output]))[output][at]),
            caught(lambda: _text(_triton(tritonclient.http, self.triton_http, arrays, output)[at])),
            caught(lambda: _text(_triton(tritonclient.grpc, self.triton_grpc, arrays, output)[at])),
        ]

    def triton_json(self, name: str, value: Any) -> Got:
        """Triton's HTTP client with JSON in both directions."""
        return caught(lambda: _triton_json(self.triton_http, self.sent(name, value), f"o_{name}")[0, 1])

    def contents(self, name: str, value: Any, shape: tuple[int, int] = (1, 2)) -> Got:
        """gRPC's typed fields, in both directions, without FP16, which has none."""
        request = ModelInferRequest(model_name="m", outputs=[{"name": f"o_{name}"}])
        size = shape[0] * shape[1]
        for each in self.plain:
            datatype = KINDS[each][0]
            tensor = request.inputs.add(name=each, datatype=datatype, shape=shape)
            values = [*PLAIN[each][0].tolist()[:1], *[PLAIN[each][0, 1] if each != name else value]][:size]
            field = getattr(tensor.contents, _FIELD_OF[datatype])
            field.extend([v.encode() if isinstance(v, str) else v for v in values])
        try:
            raw = unary(self.channel)(request.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            return Refused(_STATUS[error.code().name], error.details())
        tensor = ModelInferResponse.FromString(raw).outputs[0]
        found = getattr(tensor.contents, _FIELD_OF[KINDS[name][0]])[1]
        return _text(found) if name == "s" else PLAIN[name].dtype.type(found)


@contextmanager
def lanes(http_port: int, grpc_port: int, names: tuple[str, ...] = TYPED) -> Iterator[Lanes]:
    found = Lanes(http_port, grpc_port, names)
    try:
        yield found
    finally:
        found.close()


def caught(ask: Callable[[], Any]) -> Got:
    """Return what a client answers, or its error."""
    try:
        return ask()
    except TailcutError as error:
        return Refused(str(error.status), error.message)
    except InferenceServerException as error:
        code = str(error.status()).removeprefix("StatusCode.")
        return Refused(_STATUS.get(code, code), error.message())


def _listed(name: str, token: str | bytes | None) -> bytes:
    plain = json.dumps(PLAIN[name][0].tolist()[0])
    last = plain if token is None else token
    return b"[%b,%b]" % (plain.encode(), last if isinstance(last, bytes) else last.encode())


def _joined(parts: dict[str, bytes]) -> bytes:
    return b"{" + b",".join([b'"%b":%b' % (name.encode(), value) for name, value in parts.items()]) + b"}"


class Word(NamedTuple):
    """A value of a reply as it was written: the text of a number; a Python value else."""

    written: Any

    @property
    def value(self) -> Any:
        """Its meaning."""
        if self.written is None:
            return np.nan
        if not isinstance(self.written, Number):
            return self.written
        return int(self.written) if self.written.lstrip("-").isdigit() else float(self.written)


class Number(str):
    """The text of a number."""


def word_of(token: str) -> Word:
    """A token of the table."""
    return Word(json.loads(token, parse_float=Number, parse_int=Number, parse_constant=_no_constant))


def _word(reply: bytes, find: Callable[[Any], Any]) -> Word:
    return Word(find(json.loads(reply, parse_float=Number, parse_int=Number, parse_constant=_no_constant)))


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _triton(module: Any, client: Any, arrays: dict[str, Any], output: str) -> Any:
    inputs = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), DATATYPE_OF[array.dtype])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return client.infer("m", inputs, outputs=[module.InferRequestedOutput(output)]).as_numpy(output)


def _triton_json(client: Any, arrays: dict[str, Any], output: str) -> Any:
    module, inputs = tritonclient.http, []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), DATATYPE_OF[array.dtype])
        tensor.set_data_from_numpy(array, binary_data=False)
        inputs.append(tensor)
    return client.infer("m", inputs, outputs=[module.InferRequestedOutput(output, binary_data=False)]).as_numpy(output)


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value
