"""Fakes for tests of tailcut and of what is built on it: time, stores and sources under control."""

from tailcut.testing.clock import FakeClock
from tailcut.testing.sources import StubSource
from tailcut.testing.stores import FaultyStore

__all__ = ["FakeClock", "FaultyStore", "StubSource"]
