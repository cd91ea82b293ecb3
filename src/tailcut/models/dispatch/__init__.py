"""Dispatch: batches to idle executors, and every item of a batch to its one end."""
