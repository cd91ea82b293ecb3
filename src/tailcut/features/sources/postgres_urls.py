"""URLs of PostgreSQL: whether they can be read, and their hosts. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from tailcut.common.redaction import without_secrets
from tailcut.errors import StartError


def check_url(url: str) -> None:
    """Refuse a URL of which a part of the password would be taken for a host, a port or a database.

    Raises:
        StartError: without what is wrong in detail, which would show that part.
    """
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        readable = False
    else:
        # An @ in the query may be that of a value, as in ?password=a@b.
        behind = parts.path + parts.fragment + parts.query.partition("=")[0]
        readable = "@" in parts.netloc or "@" not in behind
    if not readable:
        raise StartError(
            f"features.database: cannot read {without_secrets(url)}: it is not a valid URL",
            hint="percent-encode the password (%2F for /, %3F for ?, %23 for #, %40 for @, %5B for [); "
            "a port is a number",
        )


def by_host(url: str) -> list[str]:
    """A URL for each host of one; as it is where the choice between them is asyncpg's."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts or "prefer-standby" in parts.query:
        return [url]
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
