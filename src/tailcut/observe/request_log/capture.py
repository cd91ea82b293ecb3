"""What a sampled request holds for the request log until it has ended, and which requests are sampled."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.common.tensors import Array, Arrays

_OF_A_TEXT = 64
"""Bytes that an element of an object array is taken for."""


class Capture:
    """Inputs and answer of one sampled request, safe from changes by anybody else.

    Attributes:
        probability: with which the request was sampled: it stands for 1/probability requests.
        encoding: how the request came: "json", "binary", "generate", "grpc" or "local"; empty where it was not read.
        inputs: tensors by the model's input names.
        body: of a request of rows or entities, as the client sent it: JSON.
        given: rows or entities of a caller in this process: {"rows": [...]} or {"entities": [...]}.
        wanted: names of the outputs that the client asked for; empty for all.
        outputs: tensors by output name.
        reply: to a request of rows or entities: JSON with "predictions", or the list of them.
    """

    __slots__ = (
        "body", "encoding", "given", "inputs", "outputs", "probability", "reply", "request_id", "trace", "wanted",
    )  # fmt: skip

    def __init__(self, probability: float) -> None:
        self.probability = probability
        self.request_id = ""
        self.trace = ""
        self.encoding = ""
        self.inputs: Arrays | None = None
        self.body = b""
        self.given: Mapping[str, Any] | None = None
        self.wanted: tuple[str, ...] = ()
        self.outputs: Arrays | None = None
        self.reply = b""

    def name(self, request_id: str, trace: str | None) -> None:
        """Note by which ids the client's logs name the request."""
        self.request_id, self.trace = request_id, trace or ""

    def take(self, inputs: Arrays, encoding: str, wanted: Sequence[str] = ()) -> None:
        """Take the tensors of a request, as copies: a caller in this process may change its own."""
        self.inputs = {name: array.copy() for name, array in inputs.items()}
        self.encoding, self.wanted = encoding, tuple(wanted)

    def take_body(self, body: bytes) -> None:
        """Take the body of a request of rows or entities."""
        self.body, self.encoding = body, "json"

    def take_values(self, what: str, values: Sequence[Any]) -> None:
        """Take rows or entities of a caller in this process, as copies: hooks may change them.

        Args:
            what: "rows" or "entities".
        """
        self.given, self.encoding = {what: copy.deepcopy(list(values))}, "local"

    def answer(self, outputs: Arrays) -> None:
        """Take the outputs, as copies: they may be part of a buffer that the next batch uses."""
        self.outputs = {name: array.copy() for name, array in outputs.items()}

    @property
    def size_bytes(self) -> int:
        """Memory that it holds, about."""
        arrays = [*(self.inputs or {}).values(), *(self.outputs or {}).values()]
        given = 0 if self.given is None else 256 * sum(len(values) for values in self.given.values())
        return 512 + len(self.body) + len(self.reply) + given + sum(map(_size, arrays))


def _size(array: Array) -> int:
    return array.nbytes + _OF_A_TEXT * array.size if array.dtype.hasobject else array.nbytes


class Sampler:
    """Draws requests at random, each with the same probability and independently of all others.

    It counts down to the next one, so that a request that is not drawn costs a comparison: the number of requests
    between two that are drawn is geometric (Devroye, "Non-Uniform Random Variate Generation", 1986, X.2).

    Args:
        share: probability of each request, above 0.
        uniform: draws from [0, 1).

    Attributes:
        left: requests that are not drawn before the next one that is.
    """

    __slots__ = ("_uniform", "left", "share")

    def __init__(self, share: float, uniform: random.Random | None = None) -> None:
        self.share = share
        self._uniform = (uniform or random.Random()).random
        self.left = self._gap()

    def draw(self) -> Capture:
        """Return what a drawn request holds; called where ``left`` is 0."""
        self.left = self._gap()
        return Capture(self.share)

    def _gap(self) -> int:
        if self.share >= 1:
            return 0
        return int(math.log(1.0 - self._uniform()) / math.log1p(-self.share))
