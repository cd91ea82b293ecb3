"""What is seen of a running server: metrics, traces, history, alerts, drift and the request log.

All are sinks of what has finished; nothing on the request path waits for any of them.
"""
