"""Durations, sizes and shares as people write them, and back. Pure and strict: nothing is guessed."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PER_SECOND = {"us": 1e6, "ms": 1e3}
_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)", re.ASCII)


class Duration(float):
    """Seconds. Written "250us", "15ms", "30s", "5m", "2h", "1d" or "5w"; a bare number is refused as ambiguous."""


class Size(int):
    """Bytes. Written "512KiB", "64MiB", "1GiB" or as a plain integer number of bytes."""


class Share(float):
    """A fraction between 0 and 1. Written "0.1%" or 0.001."""


class UnitError(ValueError):
    """A duration, size or share that cannot be read. The text says what is wrong and what to write instead."""


def parse_duration(value: object) -> Duration:
    """Read a duration such as "250us", "15ms", "30s", "5m", "2h", "1d" or "5w" as seconds.

    Raises:
        UnitError: not text, no unit, an unknown unit, negative, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UnitError(f'{_shown(value)} is not a duration; write for example "5s" or "5ms"')
    if not isinstance(value, str):
        raise UnitError(f'{_shown(value)} has no unit; write "{value}s" or "{value}ms"')
    number, unit = _split(value, "a duration", "5s", "5ms")
    if not unit:
        raise UnitError(f'{_shown(value)} has no unit; write "{number}s" or "{number}ms"')
    if unit not in _SECONDS:
        raise UnitError(f'{_shown(value)} has the unknown unit "{unit}"; the units are {", ".join(_SECONDS)}')
    # Dividing keeps decimal values exact ("15ms" is 0.015); multiplying by 1e-3 would not for all of them.
    seconds = float(number) / _PER_SECOND[unit] if unit in _PER_SECOND else float(number) * _SECONDS[unit]
    if not math.isfinite(seconds):
        raise UnitError(f"{_shown(value)} is too large for a duration")
    return Duration(seconds)


def format_duration(seconds: float) -> str:
    """Write seconds so that ``parse_duration`` reads the same number, as a short whole number where there is one."""
    best = f"{_plain(seconds)}s"
    for unit in ("m", "h", "d", "w", "ms", "us"):
        text = f"{_plain(seconds * _PER_SECOND[unit] if unit in _PER_SECOND else seconds / _SECONDS[unit])}{unit}"
        if ("." in text, len(text)) < ("." in best, len(best)) and parse_duration(text) == seconds:
            best = text
    return best


def parse_size(value: object) -> Size:
    """Read a size such as "512KiB", "64MiB", "1GiB" (or KB, MB, GB: powers of 1000), or a number of bytes.

    Raises:
        UnitError: negative, not a whole number of bytes, or an unknown unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise UnitError(f'{value} is negative; write a number of bytes, or for example "64MiB"')
        return Size(value)
    if not isinstance(value, str):
        raise UnitError(f'{_shown(value)} is not a size; write for example "64MiB" or a whole number of bytes')
    number, unit = _split(value, "a size", "64MiB", "512KiB")
    if not unit:
        raise UnitError(f'{_shown(value)} has no unit; write "{number}B", "{number}KiB" or "{number}MiB"')
    if unit not in _BYTES:
        raise UnitError(f'{_shown(value)} has the unknown unit "{unit}"; the units are {", ".join(_BYTES)}')
    size_bytes = float(number) * _BYTES[unit] if "." in number else int(number) * _BYTES[unit]
    if size_bytes != int(size_bytes):
        raise UnitError(f"{_shown(value)} is not a whole number of bytes; write a smaller unit")
    return Size(int(size_bytes))


def format_size(size_bytes: int) -> str:
    """Write bytes in the largest binary unit that divides them."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def parse_share(value: object) -> Share:
    """Read a share such as "0.1%" or 0.001 as a fraction between 0 and 1.

    Raises:
        UnitError: outside 0 to 1, text without a percent sign, or not a number.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value <= 1:
            raise UnitError(f'{value} is not between 0 and 1; write a fraction, or a percentage such as "{value}%"')
        return Share(value)
    if not isinstance(value, str):
        raise UnitError(f'{_shown(value)} is not a share; write for example "0.1%" or 0.001')
    number, unit = _split(value, "a share", "0.1%", "5%")
    if unit != "%":
        raise UnitError(f'{_shown(value)} has no percent sign; write "{number}%", or a fraction without quotes')
    if float(number) > 100:
        raise UnitError(f"{_shown(value)} is more than 100%; write a share between 0% and 100%")
    return Share(float(number) / 100)


def format_share(share: float) -> str:
    """Write a fraction as a percentage that ``parse_share`` reads as the same number, else as the plain fraction."""
    text = f"{_plain(float(f'{share * 100:.12g}'))}%"
    return text if float(text[:-1]) / 100 == share else _plain(share)


def _split(text: str, what: str, *examples: str) -> tuple[str, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None:
        wanted = " or ".join(f'"{example}"' for example in examples)
        raise UnitError(f"{_shown(text)} is not {what}; write for example {wanted}")
    return match[1], match[2]


def _plain(number: float) -> str:
    """Shortest decimal digits without an exponent."""
    text = repr(float(number))
    if "e" in text:
        text = format(Decimal(text), "f")
    return text.removesuffix(".0")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
