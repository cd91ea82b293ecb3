"""Compares two spans of the history: which stage grew, by how much, and what is noise."""
