"""Decisions only: no clock, no I/O, no threads. Time comes in as an argument, a decision goes out as a value.

Times are integer nanoseconds of one monotonic clock (``_ns``) unless a name says otherwise.
"""
