"""How long a server's variant has held its device: read from the server's own /metrics."""

from __future__ import annotations

import http.client

from tailcut.errors import BuildError

COUNTER = "tailcut_device_busy_seconds"
"""As the server calls it (observe.model_sinks); on the page with "_total" behind it."""

_TIMEOUT_S = 10.0


def device_seconds(port: int) -> float:
    """Return the seconds that the variant of the server on 127.0.0.1 has held its device so far.

    Raises:
        BuildError: the server does not say: what was not measured has no figure, and no price.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise BuildError(f"the server's /metrics cannot be read: {error!r}", hint="see the server's log") from error
    finally:
        connection.close()
    return held_seconds(text)


def held_seconds(text: str) -> float:
    """Find the figure in a page of /metrics.

    Raises:
        BuildError: it is not there.
    """
    for line in text.splitlines():
        if line.startswith(f"{COUNTER}_total{{"):
            return float(line.rpartition(" ")[2])
    raise BuildError(
        f"the server's /metrics has no {COUNTER}_total: the time on the device was not measured",
        hint="the variant does not run on a device, although the build expected it to",
    )
