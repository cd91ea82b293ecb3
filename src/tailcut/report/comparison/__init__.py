"""A comparison of two spans of the history for terminals."""
