"""Traces: spans made after the reply from the timings of requests that are worth keeping."""
