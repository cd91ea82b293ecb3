"""The signals with which supervisor and worker tell one another."""

from __future__ import annotations

import signal

STOP = signal.SIGUSR2
"""What the supervisor stops its worker with; SIGTERM and SIGINT may come from anybody."""
