"""Metrics: counted in plain arrays on the request path, exposed when somebody scrapes."""
