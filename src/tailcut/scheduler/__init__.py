"""Scheduling decisions: what runs next, in which batch, and what is refused. Pure: time comes in as an argument."""
