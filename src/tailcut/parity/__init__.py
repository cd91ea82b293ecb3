"""The same requests to the pilot and to the deployment: what differs, by how much, and why."""

from tailcut.parity.plan import ParityPlan
from tailcut.parity.running import run

__all__ = ["ParityPlan", "run"]
