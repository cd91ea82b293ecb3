"""Addresses that a webhook may be sent to: resolved once, judged, and then connected to as they are.

A name is not looked up a second time for the connection: it could have another address by then (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from tailcut.common.addresses import is_public

Resolve = Callable[[str, int], Sequence[str]]
"""Host and port to IP addresses, as text."""


class AddressRefusedError(Exception):
    """A host has no address that a webhook may be sent to."""


def resolve(host: str, port: int) -> list[str]:
    """Look a host up; blocks. Raises OSError where it cannot be found."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def checked_addresses(host: str, port: int, *, allow_private: bool, resolve: Resolve = resolve) -> list[str]:
    """Return the addresses of a host that may be connected to.

    Raises:
        OSError: the host cannot be found.
        AddressRefusedError: one of its addresses is private, link-local, loopback or otherwise not public.
    """
    found = list(resolve(host, port))
    refused = [] if allow_private else [address for address in found if not is_public(address)]
    if refused or not found:
        what = f"has the address {refused[0]}, which is not public" if refused else "has no address"
        raise AddressRefusedError(
            f"the webhook's host {host} {what}; set observe.alerts.allow_private = true to allow it"
        )
    return found
