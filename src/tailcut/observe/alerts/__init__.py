"""Alerts that a server evaluates itself: rules over its own counts, one alarm per cause, a log line and a webhook."""
