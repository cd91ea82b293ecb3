"""Profiles of a served deployment: its timings, what its hooks do, and what its requests cost."""
