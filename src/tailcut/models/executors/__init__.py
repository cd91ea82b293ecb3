"""Executors: what runs a batch, on the event loop, in a thread or in a process of its own."""
