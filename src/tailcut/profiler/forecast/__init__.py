"""Simulation of requests through a service, to predict latency and capacity. Pure."""
