"""Drift of a model's inputs and outputs against the holdout that it was judged on. Pure: no clock, no I/O.

    reference rows -> sketches -> cells per row -> bets per column -> evidence, with the effect's size -> alarm

The null hypothesis is composite: the reference is an estimate from n rows, and changes that touch less than
``min_effect`` of the rows are no drift. See ``bets`` for what is wagered and ``detector`` for when it is an alarm.
"""
