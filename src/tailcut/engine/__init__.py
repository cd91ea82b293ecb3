"""The request path, the dispatcher that drives the planner, pools and executors."""
