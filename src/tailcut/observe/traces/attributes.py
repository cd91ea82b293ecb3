"""Names of attributes of spans, in one place.

Those of OpenTelemetry are after its semantic conventions for HTTP, RPC and resources, of the version that
``SCHEMA_URL`` names; tailcut's own begin with ``tailcut.``.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
SCOPE = "tailcut"
"""Name of the instrumentation scope."""

SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
HOST_NAME = "host.name"
PROCESS_ID = "process.pid"

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"
ERROR_TYPE = "error.type"

MODEL = "tailcut.model"
VARIANT = "tailcut.variant"
VERSION = "tailcut.version"
ROUTE = "tailcut.route"
CACHE = "tailcut.cache"
CODE = "tailcut.code"
KEPT = "tailcut.kept"
"""Why the trace was kept."""
REQUEST_ID = "tailcut.request_id"
STAGE = "tailcut.stage"
GROUP = "tailcut.feature.group"
GROUP_RESULT = "tailcut.feature.result"
"""hit, miss, stale, or error: of its keys the worst."""
GROUP_HITS = "tailcut.feature.hits"
GROUP_MISSES = "tailcut.feature.misses"
GROUP_STALE = "tailcut.feature.stale"
BATCH = "tailcut.batch.id"
BATCH_REQUESTS = "tailcut.batch.requests"
BATCH_ROWS = "tailcut.batch.rows"
LINK = "tailcut.link"
"""What a link leads to: the batch, or a neighbour in it."""
