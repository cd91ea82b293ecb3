"""Where feature values come from: PostgreSQL, SQLite, Python functions."""
