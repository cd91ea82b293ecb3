"""Open Inference Protocol v2, ModelInfer's messages <-> arrays. No I/O.

Source: Open Inference Protocol, gRPC, "ModelInfer": a request's data is raw for all of its inputs or typed for all;
the reply's is of the same kind. FP16 has no typed field, so a reply with an FP16 output is raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from msgspec import UNSET

from tailcut.common.tensors import Array, Arrays
from tailcut.common.texts import bytes_of, text_of
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.protocol.open_inference.binary import array_of, output_datatype, raw_of
from tailcut.protocol.open_inference.codec import Inference, ModelCodec, check_datatype
from tailcut.protocol.open_inference.parameters import flag, no_classification, priority, refuse_sequences, timeout_ns
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


def parameters_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map of InferParameter as Python values; None for one without a value."""
    if not message:
        return {}
    chosen = {name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in message.items()}
    return {name: getattr(parameter, field) if field else None for name, (parameter, field) in chosen.items()}


class MessageCodec(ModelCodec):
    """Reads requests and writes replies over gRPC for one model; arguments as ``ModelCodec``."""

    def decode(self, request: ModelInferRequest) -> Inference:
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
        self._check_names([tensor.name for tensor in tensors])
        inputs: Arrays = {}
        for index, tensor in enumerate(tensors):
            spec = self._specs[tensor.name]
            check_datatype(tensor.name, tensor.datatype, spec)
            if tensor.parameters and _SHARED_MEMORY in tensor.parameters:
                raise _no_shared_memory(f"input {tensor.name!r}")
            shape = list(tensor.shape)
            if not raws:
                inputs[tensor.name] = _typed(tensor, spec, shape, self._max_rows)
            elif tensor.HasField("contents"):
                raise BadRequest(
                    f"input {tensor.name!r} has both contents and raw_input_contents", hint="send one of the two"
                )
            else:
                inputs[tensor.name] = array_of(raws[index], spec, shape, self._max_rows)
        inputs, rows = self._many(inputs)
        self._check_limits(inputs)
        outputs = self._outputs
        if request.outputs:
            outputs = self._wanted([output.name for output in request.outputs])
            for output in request.outputs:
                if _SHARED_MEMORY in output.parameters:
                    raise _no_shared_memory(f"output {output.name!r}")
                if "classification" in output.parameters:
                    raise no_classification(output.name)
        parameters = parameters_of(request.parameters)
        refuse_sequences(parameters)
        return Inference(
            inputs,
            rows,
            outputs,
            request.id,
            timeout_ns(parameters),
            outputs if raws else (),
            priority(parameters),
            flag(parameters, "triton_enable_empty_final_response", default=False),
        )

    def encode(self, inference: Inference, outputs: Arrays) -> ModelInferResponse:
        """Write the reply.

        Raises:
            InferenceError: an output holds NaN or infinity and is not one of ``nan_outputs``.
        """
        reply = self.empty(inference)
        raw = inference.binary or any(outputs[name].dtype == np.float16 for name in inference.outputs)
        for name in inference.outputs:
            array = self.finite(name, outputs[name])
            datatype = output_datatype(array)
            tensor = reply.outputs.add(name=name, datatype=datatype, shape=array.shape)
            if raw:
                reply.raw_output_contents.append(raw_of(array))
            else:
                values: list[Any] = array.ravel().tolist()
                found = map(bytes_of, values) if array.dtype.hasobject else values
                getattr(tensor.contents, _FIELD_OF[datatype]).extend(found)
        return reply

    def empty(self, inference: Inference) -> ModelInferResponse:
        """Return a reply without outputs."""
        own_id = "" if inference.id is UNSET else inference.id
        return ModelInferResponse(model_name=self._model, model_version=self._version, id=own_id)


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


def _no_shared_memory(what: str) -> BadRequest:
    return BadRequest(
        f"{what} asks for shared memory, which this server does not support", hint="send tensors in the message"
    )
