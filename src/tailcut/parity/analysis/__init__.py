"""Decisions of ``tailcut parity``: which fields belong together, what differs, and which change explains it."""
