"""Open an artifact and run it."""
