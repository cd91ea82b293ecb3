"""Transports: HTTP/1.1, gRPC and ASGI; the worker process and its supervisor."""
