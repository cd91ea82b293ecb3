"""Rows that no training step saw: read, typed, labelled, and run."""
