"""Slow layers of a model, found in a process of their own."""
