"""Routes of the model repository extension: which models there are, load, unload.

POST /v2/repository/index                       {"ready": false}
POST /v2/repository/models/{model}/load         {"parameters": {"version": ..., "variant": ...}}
POST /v2/repository/models/{model}/unload

Source: Triton's model repository extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_model_repository.md); ``version`` and ``variant`` are tailcut's own parameters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from tailcut.common.json_values import UNREADABLE
from tailcut.errors import BadRequest
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import Body, HeaderMap, Reply, clipped, json_reply, read_small
from tailcut.protocol.openapi.document import INFERENCE, repository_operation
from tailcut.protocol.routing import Route
from tailcut.serving.host import Host

_MAX_BODY_BYTES = 64 * 1024
_REFUSED = ("400", "403", "404", "413", "500", "503")
_LOAD = repository_operation("Load the promoted variant, or a given version and variant", "LoadRequest", _REFUSED)
_UNLOAD = repository_operation("Unload the model until the next load", "UnloadRequest", _REFUSED)
_PARAMETERS = ("version", "variant")


class _Index(msgspec.Struct):
    ready: bool = False


class _Change(msgspec.Struct):
    parameters: dict[str, Any] = {}


class RepositoryRoutes:
    """Answers for the models of a host."""

    def __init__(self, host: Host, guard: Guard) -> None:
        self._host = host
        self._guard = guard
        self._index_decoder = msgspec.json.Decoder(_Index)
        self._change_decoder = msgspec.json.Decoder(_Change)

    def routes(self) -> dict[str, Route]:
        """Routes by path that belong to no model."""
        reply = {"$ref": "#/components/schemas/IndexReply"}
        index = repository_operation(
            "List of models, versions and variants", "IndexRequest", ("400", "413"), INFERENCE, reply
        )
        return {"/v2/repository/index": Route("POST", self._index, index)}

    def of_model(self, name: str) -> dict[str, Route]:
        """Routes of a model by path; it need not exist yet."""
        model = f"/v2/repository/models/{name}"
        return {
            f"{model}/load": Route("POST", partial(self._load, name), _LOAD),
            f"{model}/unload": Route("POST", partial(self._unload, name), _UNLOAD),
        }

    async def _index(self, headers: HeaderMap, body: Body) -> Reply:
        self._guard.inference(headers)
        asked = _decoded(self._index_decoder, await read_small(headers, body, _MAX_BODY_BYTES)) or _Index()
        return json_reply(await self._host.index(ready_only=asked.ready))

    async def _load(self, name: str, headers: HeaderMap, body: Body) -> Reply:
        self._guard.management(headers)
        asked = _decoded(self._change_decoder, await read_small(headers, body, _MAX_BODY_BYTES)) or _Change()
        version, variant = load_parameters(asked.parameters)
        await self._host.load(name, version=version, variant=variant)
        return json_reply(self._host.outdated(name))

    async def _unload(self, name: str, headers: HeaderMap, body: Body) -> Reply:
        self._guard.management(headers)
        # Its one parameter, unload_dependents, is about models that are made of others; there are none here.
        _decoded(self._change_decoder, await read_small(headers, body, _MAX_BODY_BYTES))
        self._host.unload(name)
        return json_reply({})


def load_parameters(parameters: dict[str, Any]) -> tuple[str, str]:
    """Return version and variant to load, empty where they are not named.

    Raises:
        BadRequest: another parameter, or one that is no text.
    """
    for name, value in parameters.items():
        if name not in _PARAMETERS:
            raise BadRequest(
                f"parameter {clipped(name)!r} of load is not supported",
                hint=f"models come from the registry unchanged; the parameters are {', '.join(_PARAMETERS)}",
            )
        if not isinstance(value, str):
            raise BadRequest(f"parameter {name} is {clipped(value)}, expected text", hint='such as "variant": "onnx"')
    return str(parameters.get("version", "")), str(parameters.get("variant", ""))


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    """Return what a body says; None for an empty one, which is allowed."""
    if not raw.strip():
        return None
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise BadRequest(
            f"the body cannot be read: {clipped(error)}", hint="send a JSON object, or an empty body"
        ) from error
