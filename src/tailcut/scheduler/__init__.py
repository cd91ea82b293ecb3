"""Scheduling decisions: what runs next, in which batch, and what is refused. Pure: time comes in as an argument.

Times are integer nanoseconds of one monotonic clock (``_ns``) unless a name says otherwise.
"""
