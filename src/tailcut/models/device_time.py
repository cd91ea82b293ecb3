"""How long a variant that runs on a device has held it: what a GPU-hour is paid for."""

from __future__ import annotations

from tailcut.models.dispatch.dispatcher import BatchObserver
from tailcut.observe.exposition import Sample


class DeviceTime:
    """Sums the time of batches and tells ``observer`` of them; executors that share a device count each."""

    def __init__(self, observer: BatchObserver) -> None:
        self._observer = observer
        self.busy_ns = 0

    def batch(self, rows: int, duration_ns: int) -> None:
        """Note a batch that ran."""
        self.busy_ns += duration_ns
        self._observer.batch(rows, duration_ns)

    def sample(self, labels: dict[str, str]) -> Sample:
        """Return the counter for /metrics."""
        text = "Seconds in which executors held the device; only for variants that run on a device."
        return Sample("tailcut_device_busy_seconds", text, "counter", labels, self.busy_ns / 1e9)
