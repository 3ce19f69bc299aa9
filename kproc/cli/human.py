"""Formats sizes and times for people: 1.2 MiB, 5m32s. JSON output has the exact numbers instead."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_QUANTITY: Final = re.compile(r"-?\d+(\.\d+)?( ([KMGTPE]i)?B)?|(\d+[ydhms])+|\d+%")
_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_YEAR_MS: Final = 365 * _DAY_MS


def format_bytes(count: float) -> str:
    """Format a number of bytes with a binary unit: 999 B, 1.2 KiB, 15 MiB."""
    at = 0
    # Use the next unit from 1023.5 on, because the number would be shown rounded to 1024 of the smaller unit.
    while abs(count) >= 1023.5 and at < len(_UNITS) - 1:
        count /= 1024
        at += 1
    has_decimal = at and abs(count) < 9.95
    return f"{count:.1f} {_UNITS[at]}" if has_decimal else f"{count:.0f} {_UNITS[at]}"


def format_duration(ms: float) -> str:
    """Format a duration as kubectl does: with one or two units, less precise for longer times: 95s, 5m32s, 3h7m, 8d."""
    ms = max(0, int(ms))
    if ms < 2 * _MINUTE_MS:
        return f"{ms // _SECOND_MS}s"
    if ms < 10 * _MINUTE_MS:
        return _two_units(ms, (_MINUTE_MS, "m"), (_SECOND_MS, "s"))
    if ms < 3 * _HOUR_MS:
        return f"{ms // _MINUTE_MS}m"
    if ms < 8 * _HOUR_MS:
        return _two_units(ms, (_HOUR_MS, "h"), (_MINUTE_MS, "m"))
    if ms < 2 * _DAY_MS:
        return f"{ms // _HOUR_MS}h"
    if ms < 8 * _DAY_MS:
        return _two_units(ms, (_DAY_MS, "d"), (_HOUR_MS, "h"))
    if ms < 2 * _YEAR_MS:
        return f"{ms // _DAY_MS}d"
    return _two_units(ms, (_YEAR_MS, "y"), (_DAY_MS, "d"))


def counted(count: int, noun: str) -> str:
    """Return the number with the noun, which has an s unless it is 1: 1 record, 2 records."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def is_quantity(text: str) -> bool:
    """Return True if the text is a number, or a size, duration or count in the formats of this module."""
    return _QUANTITY.fullmatch(text) is not None


def _two_units(ms: int, large: tuple[int, str], small: tuple[int, str]) -> str:
    rest = ms % large[0] // small[0]
    return f"{ms // large[0]}{large[1]}" + (f"{rest}{small[1]}" if rest else "")


def camel_case(name: str) -> str:
    """Format the name of an API as Kafka does: LIST_OFFSETS becomes ListOffsets."""
    return "".join(word.capitalize() for word in name.split("_"))
