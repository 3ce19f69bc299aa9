"""Parsers of option values, shared by source, sink and segment files. No I/O.

Each parser raises OptionError with the option's name and its allowed values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kproc.broker.config.values import INT_MAX, LONG_MAX
from kproc.common.json_bytes import parse_json
from kproc.common.reading import READ_COMMITTED, READ_UNCOMMITTED

_TIME: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES: Final = {
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}

TEXT_BYTES_MAX: Final = 32_000
"""Longest text of an option. Kafka's strings have up to 32,767 bytes, and the sink adds to txnAppId."""

# By option: the field of the parsed options, and the parser of the option's value.
OptionTable = Mapping[str, tuple[str, Callable[[str, str], Any]]]


class OptionError(ValueError):
    """An option is invalid. The message is one line for the user."""


def parse_table(options: Mapping[str, str], table: OptionTable) -> dict[str, Any]:
    """Return the fields of the options that are given. `options` has names in lower case, as Spark passes them."""
    return {
        field: read(name, options[name.lower()])
        for name, (field, read) in table.items()
        if name.lower() in options
    }


def reject_unknown(names: Iterable[str], known: Iterable[str], refused: Mapping[str, str]) -> None:
    """Raise OptionError for the first name that is not known, with the reason or a similar name.

    names: of the given options, in lower case. refused: names with the reason why they cannot be honoured.
    """
    spelling = {name.lower(): name for name in known}
    for name in names:
        if name in spelling:
            continue
        if name in refused:
            raise OptionError(f"option {name} is not supported: {refused[name]}")
        close = difflib.get_close_matches(name, spelling, n=1, cutoff=0.7)
        if f"kafka.{name}" in spelling:
            close = [f"kafka.{name}"]
        hint = f"did you mean {spelling[close[0]]}?" if close else "kproc/SPARK.md lists all of them"
        raise OptionError(f"there is no option {name}: {hint}")


def read_bootstrap(options: Mapping[str, str], what: str) -> str:
    """Return the option `kafka.bootstrap.servers`.

    If it is missing, raise OptionError with the text of Spark's own connector.

    what: "consumer" or "producer", for the message.
    """
    found = options.get("kafka.bootstrap.servers", "").strip()
    if not found:
        raise OptionError(f"option kafka.bootstrap.servers must be specified for configuring Kafka {what}")
    return found


def read_text(name: str, value: str) -> str:
    """Return the text without surrounding blanks. Reject an empty text, and one of more than TEXT_BYTES_MAX bytes."""
    text = value.strip()
    if not text:
        raise OptionError(f"{name} is empty")
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise OptionError(f"{name} is longer than {TEXT_BYTES_MAX} bytes")
    return text


def read_flag(name: str, value: str) -> bool:
    """Parse `true` or `false`, in upper or lower case."""
    return bool(read_choice(name, value, {"true": True, "false": False}))


def read_choice(name: str, value: str, choices: Mapping[str, Any]) -> Any:
    """Return the value of the chosen word in `choices`. Case does not matter."""
    word = value.strip().lower()
    if word not in choices:
        *others, last = choices
        raise OptionError(f"{name} must be {', '.join(others)} or {last}, not {value!r}")
    return choices[word]


def read_integer(name: str, value: str) -> int:
    """Parse an integer."""
    try:
        return int(value.strip())
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {value!r}") from None


def read_count(name: str, value: str, *, low: int = 1, high: int = INT_MAX) -> int:
    """Parse an integer from `low` to `high`. The default range is that of Java's int, without 0."""
    number = read_integer(name, value)
    if number < low:
        raise OptionError(f"{name} must be at least {low}, not {number}")
    if number > high:
        raise OptionError(f"{name} must be at most {high}, not {number}")
    return number


def read_count_or_zero(name: str, value: str) -> int:
    """Parse an integer from 0 to the largest int of Java."""
    return read_count(name, value, low=0)


def read_long(name: str, value: str) -> int:
    """Parse an integer from 1 to the largest long of Java."""
    return read_count(name, value, high=LONG_MAX)


def read_long_or_zero(name: str, value: str) -> int:
    """Parse an integer from 0 to the largest long of Java."""
    return read_count(name, value, low=0, high=LONG_MAX)


def _with_unit(name: str, value: str, units: Mapping[str, int], default: str, like: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,19})\s*([a-zA-Z]*)\s*", value)
    unit = (match[2].lower() or default) if match else ""
    if match is None or unit not in units:
        raise OptionError(f"{name} must be like {like}, not {value!r}")
    return int(match[1]) * units[unit]


def read_time_ms(name: str, value: str) -> int:
    """Parse a duration such as `15m` or `10s` and return ms. A number without a unit is in ms."""
    return _with_unit(name, value, _TIME, "ms", '"15m", "10s" or "500ms"')


def read_byte_count(name: str, value: str) -> int:
    """Parse a size such as `64m` or `512k` and return bytes. A number without a unit is in bytes."""
    count = _with_unit(name, value, _BYTES, "b", '"64m", "512k" or 1000000')
    if not 1 <= count <= LONG_MAX:
        raise OptionError(f"{name} must be at least 1 and at most {LONG_MAX}")
    return count


def read_names(name: str, value: str) -> tuple[str, ...]:
    """Parse names separated by commas. Remove duplicates and reject an empty list."""
    names = tuple(dict.fromkeys(filter(None, (each.strip() for each in value.split(",")))))
    if not names:
        raise OptionError(f"{name} is empty: give at least one name")
    return names


def read_pattern(name: str, value: str) -> str:
    """Return the text. Raise OptionError if it is not a regular expression of Python."""
    try:
        re.compile(read_text(name, value))
    except re.error as error:
        raise OptionError(f"{name} {value!r} is not a regular expression of Python's: {error}") from None
    return value.strip()


def read_json(name: str, value: str) -> Any:
    """Parse a JSON document."""
    try:
        return parse_json(value)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}; it is {value!r}") from None


def read_isolation(name: str, value: str) -> int:
    """Parse read_committed or read_uncommitted, and return Kafka's number of that isolation level."""
    levels = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
    return int(read_choice(name, value, levels))
