"""Open Inference Protocol v2, ModelInfer's messages <-> arrays. No I/O.

Source: Open Inference Protocol, gRPC, "ModelInfer": a request's data is raw for all of its inputs or typed for all;
the reply's is of the same kind. FP16 has no typed field, so a reply with an FP16 output is raw.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from reprlib import repr as shown
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from tailcut.common.tensors import Array, Arrays
from tailcut.common.texts import bytes_of, text_of
from tailcut.common.validation import InputSpec, all_finite, check_names, check_rows, limits_of, not_finite
from tailcut.errors import BadRequest
from tailcut.protocol.http import clipped
from tailcut.protocol.open_inference.binary import array_of, output_datatype, raw_of
from tailcut.protocol.open_inference.parameters import refuse_sequences
from tailcut.transport.grpc.open_inference_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse

_FIELD_OF = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_SHARED_MEMORY = "shared_memory_region"

FINAL = "triton_final_response"
WANTS_FINAL = "triton_enable_empty_final_response"


class GrpcInference(msgspec.Struct):
    """A checked request.

    Attributes:
        inputs: every input of the model by name, first dimension ``rows``.
        outputs: names wanted, in the client's order; the model's own tuple where it wants all.
        raw: whether the client sent its data raw.
        parameters: the request's own, as Python values.
    """

    inputs: dict[str, Any]
    rows: int
    outputs: tuple[str, ...]
    id: str
    raw: bool
    parameters: dict[str, Any]


def parse(message: bytes) -> ModelInferRequest:
    """Read a message; nothing in it is checked yet.

    Raises:
        BadRequest: the bytes are no ModelInferRequest.
    """
    try:
        return ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise BadRequest(
            f"the bytes are not a ModelInferRequest: {clipped(error)}",
            hint="send a serialised ModelInferRequest; server reflection has the server's .proto file",
        ) from error


def parameters_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map of InferParameter as Python values; None for one without a value."""
    if not message:
        return {}
    chosen = {name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in message.items()}
    return {name: getattr(parameter, field) if field else None for name, (parameter, field) in chosen.items()}


class MessageCodec:
    """Reads requests and writes replies for one model.

    Args:
        specs: what each input must be.
        outputs: the model's outputs in the manifest's order.
        max_rows: a request of more is refused before its data is looked at.
        nan_outputs: names of the outputs in which NaN and infinity are answers.
    """

    def __init__(
        self,
        model: str,
        version: str,
        specs: Sequence[InputSpec],
        outputs: tuple[str, ...],
        *,
        max_rows: int,
        nan_outputs: Collection[str] = (),
    ) -> None:
        self._model = model
        self._version = version
        self._specs = {spec.name: spec for spec in specs}
        self._names = [spec.name for spec in specs]
        self._limits = limits_of(specs)
        self._outputs = outputs
        self._max_rows = max_rows
        self._nan_outputs = frozenset(nan_outputs)

    def decode(self, request: ModelInferRequest) -> GrpcInference:
        """Check one request.

        Raises:
            BadRequest: an input has the wrong name, datatype, shape, size or value.
            TooLarge: more than ``max_rows`` rows.
        """
        tensors = request.inputs
        raws = request.raw_input_contents
        if raws and len(raws) != len(tensors):
            raise BadRequest(
                f"the request has {len(tensors)} inputs and {len(raws)} raw_input_contents",
                hint="send raw contents for every input, in the order of the inputs, or for none",
            )
        names = [tensor.name for tensor in tensors]
        if names != self._names:
            check_names(names, self._names, "input")
        inputs: Arrays = {}
        for index, tensor in enumerate(tensors):
            spec = self._specs[tensor.name]
            _check_tensor(tensor, spec)
            shape = list(tensor.shape)
            if not raws:
                inputs[tensor.name] = _typed(tensor, spec, shape, self._max_rows)
            elif tensor.HasField("contents"):
                raise BadRequest(
                    f"input {tensor.name!r} has both contents and raw_input_contents", hint="send one of the two"
                )
            else:
                inputs[tensor.name] = array_of(raws[index], spec, shape, self._max_rows)
        rows = check_rows({name: len(array) for name, array in inputs.items()})
        for name, limits in self._limits:
            limits.check(inputs[name])
        if names != self._names:
            inputs = {name: inputs[name] for name in self._names}
        outputs = self._wanted(request) if request.outputs else self._outputs
        parameters = parameters_of(request.parameters)
        refuse_sequences(parameters)
        return GrpcInference(inputs, rows, outputs, request.id, bool(raws), parameters)

    def encode(self, inference: GrpcInference, outputs: Arrays) -> ModelInferResponse:
        """Write the reply.

        Raises:
            InferenceError: an output holds NaN or infinity and is not one of ``nan_outputs``.
        """
        reply = ModelInferResponse(model_name=self._model, model_version=self._version, id=inference.id)
        raw = inference.raw or any(outputs[name].dtype == np.float16 for name in inference.outputs)
        for name in inference.outputs:
            array = outputs[name]
            if array.dtype.kind == "f" and name not in self._nan_outputs and not all_finite(array):
                raise not_finite(name)
            datatype = output_datatype(array)
            tensor = reply.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if raw:
                reply.raw_output_contents.append(raw_of(array))
            else:
                getattr(tensor.contents, _FIELD_OF[datatype]).extend(_values(array))
        return reply

    def empty(self, inference_id: str) -> ModelInferResponse:
        """Return a reply without outputs."""
        return ModelInferResponse(model_name=self._model, model_version=self._version, id=inference_id)

    def _wanted(self, request: ModelInferRequest) -> tuple[str, ...]:
        names = [output.name for output in request.outputs]
        for output in request.outputs:
            if output.name not in self._outputs:
                raise BadRequest(
                    f"output {shown(output.name)} is unknown", hint=f"this model's outputs: {', '.join(self._outputs)}"
                )
            if output.parameters:
                _check_output(output)
        if len(set(names)) != len(names):
            raise BadRequest(f"outputs are requested twice: {shown(names)}", hint="name each output once")
        return self._outputs if tuple(names) == self._outputs else tuple(names)


def _check_tensor(tensor: ModelInferRequest.InferInputTensor, spec: InputSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise BadRequest(
            f"input {tensor.name!r} has datatype {shown(tensor.datatype)}, expected {spec.datatype}",
            hint=f"send {spec.datatype}",
        )
    if tensor.parameters and _SHARED_MEMORY in tensor.parameters:
        raise _no_shared_memory(f"input {tensor.name!r}")


def _check_output(output: ModelInferRequest.InferRequestedOutputTensor) -> None:
    if _SHARED_MEMORY in output.parameters:
        raise _no_shared_memory(f"output {output.name!r}")
    if "classification" in output.parameters:
        raise BadRequest(
            f"output {output.name!r} asks for classification, which is not supported",
            hint="request the output itself and select its largest values",
        )


def _typed(tensor: ModelInferRequest.InferInputTensor, spec: InputSpec, shape: list[int], max_rows: int) -> Array:
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    field = _FIELD_OF.get(spec.datatype)
    if field is None:
        raise BadRequest(
            f"input {tensor.name!r} is {spec.datatype}, but contents has no field for it",
            hint="send it in raw_input_contents",
        )
    contents: InferTensorContents = tensor.contents
    others = [other.name for other, _ in contents.ListFields() if other.name != field]
    if others:
        raise BadRequest(
            f"input {tensor.name!r} has {spec.datatype} data in {others[0]}", hint=f"send {spec.datatype} in {field}"
        )
    values = getattr(contents, field)
    if len(values) != prod(shape):
        raise BadRequest(
            f"input {tensor.name!r} has {len(values)} values in {field} for shape {shape}, expected {prod(shape)}",
            hint="make contents and shape agree, in row-major order",
        )
    if spec.datatype == "BYTES":
        values = [text_of(value, tensor.name) for value in values]
    try:
        array = np.array(list(values), dtype=spec.dtype).reshape(shape)
    except OverflowError as error:
        raise BadRequest(
            f"input {tensor.name!r} holds a value that {spec.datatype} cannot hold: {error}",
            hint=f"values must fit {spec.datatype}",
        ) from error
    spec.check_values(array)
    return array


def _values(array: Array) -> list[Any]:
    values: list[Any] = array.ravel().tolist()
    if array.dtype.hasobject:
        return [bytes_of(value) for value in values]
    return values


def _no_shared_memory(what: str) -> BadRequest:
    return BadRequest(
        f"{what} asks for shared memory, which this server does not support", hint="send tensors in the message"
    )
