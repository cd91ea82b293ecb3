"""HTTP/1.1 on the event loop itself: httptools reads, uvloop carries, and no other thread takes part.

Source: RFC 9112 (HTTP/1.1), RFC 9110 (HTTP semantics).
"""
