"""The scheduler on a clock of its own: what a deployment would do under a load. Pure."""
