"""Open Inference Protocol v2 over gRPC, in the worker process, on the event loop and the path that HTTP uses.

Nothing here is imported unless ``server.grpc_port`` is set; it needs ``pip install tailcut[grpc]``.
"""
