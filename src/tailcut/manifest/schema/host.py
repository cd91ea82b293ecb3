"""What ``host.toml`` holds: the server, and the models that it serves."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tailcut.manifest.schema.observe import Observe
from tailcut.manifest.schema.server import ServerSettings
from tailcut.manifest.section import Section


class HostedModel(Section, frozen=True, kw_only=True):
    """One model of a host."""

    path: Annotated[
        str,
        Meta(
            description="the model's manifest, or the folder of its tailcut.toml, relative to host.toml",
            examples=["models/minilm"],
        ),
    ]
    required: Annotated[
        bool, Meta(description="whether the host is ready only while this model is: see GET /v2/health/ready")
    ] = True


class HostFile(Section, frozen=True, kw_only=True):
    """Several models in one server."""

    server: Annotated[ServerSettings, Meta(description="the server of all models")] = ServerSettings()
    observe: Annotated[Observe, Meta(description="what is seen of all models")] = Observe()
    models: Annotated[
        tuple[HostedModel, ...],
        Meta(description="the models; none: every subfolder of the folder of host.toml that has a tailcut.toml"),
    ] = ()
