"""Addresses that a webhook may be sent to: resolved once, judged, and then connected to as they are.

A name is not looked up a second time for the connection: it could have another address by then (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
"""Host and port to IP addresses, as text."""

_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefusedError(Exception):
    """A host has no address that a webhook may be sent to."""


def resolve(host: str, port: int) -> list[str]:
    """Look a host up; blocks. Raises OSError where it cannot be found."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def is_public(text: str) -> bool:
    """Whether an address is reachable from anywhere; one that contains an IPv4 address is judged by that.

    Raises:
        ValueError: the text is no address.
    """
    address: Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved


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
