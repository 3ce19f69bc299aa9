"""Kinds of values of settings, their parsers and their checks.

Parsing follows Kafka's ConfigDef: surrounding blanks are removed, numbers are Java's (16, 32 or 64 bits, no
underscores, no units), a boolean is `true` or `false`, a list is split at commas. Only sizes of `kproc.*` settings
also accept units. Every error is a ConfigError that names the setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, Final

import msgspec

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

# The text in place of a password in all output, as in Kafka.
HIDDEN: Final = "[hidden]"


class ConfigError(ValueError):
    """An invalid setting. The message is for the user: it names the setting and needs no further context."""


class Check:
    """Validates a value of a setting. `range` says in words which values are valid, for the reference of settings."""

    __slots__ = ("_error_of", "range")

    def __init__(self, valid: str, error_of: Callable[[Any], str | None]) -> None:
        self.range = valid
        self._error_of = error_of

    def __call__(self, value: Any) -> str | None:
        """Return an error text for an invalid value, or None if the value is valid."""
        return self._error_of(value)


class Kind(Enum):
    """The type of a setting. Its value is the type's name in DescribeConfigs (KIP-569)."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    SHORT = "SHORT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"
    PASSWORD = "PASSWORD"  # noqa: S105 - the name of a type
    # The blank keeps this member distinct from LONG. Without it, SIZE would be an alias of LONG and lose its units.
    SIZE = "LONG "

    @property
    def kafka_name(self) -> str:
        """The name of this type for clients. Sizes are longs."""
        return self.value.strip()


class Secret:
    """A value of kind PASSWORD. Its text form is `[hidden]`, so that no log, response or error can reveal it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the password itself. Only the code that uses it may call this."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class Dynamic(Enum):
    """Kafka's update mode of a setting: the scope in which it can change while the broker runs."""

    NO = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER = "cluster-wide"


# Short names, because each of them stands in many rows of the tables.
BOOLEAN, DOUBLE, INT, LIST, LONG, PASSWORD, SIZE, STRING = (
    Kind.BOOLEAN,
    Kind.DOUBLE,
    Kind.INT,
    Kind.LIST,
    Kind.LONG,
    Kind.PASSWORD,
    Kind.SIZE,
    Kind.STRING,
)
CLUSTER, PER_BROKER = Dynamic.CLUSTER, Dynamic.PER_BROKER
# The largest record that Kafka can allocate: the longest array of Java (Records.SOFT_MAX_ARRAY_LENGTH).
RECORD_BYTES_MAX: Final = 2_147_483_639
# The reason why settings about replicas have no effect.
ONE_REPLICA: Final = "one host keeps one replica"


class Setting(msgspec.Struct, frozen=True):
    """One row of the table of settings. `unhonoured` is the reason why a setting has no effect, or None."""

    name: str
    kind: Kind
    default: Any
    doc: str
    check: Check | None
    dynamic: Dynamic
    unhonoured: str | None
    is_internal: bool
    per_listener: bool
    per_mechanism: bool

    @property
    def is_secret(self) -> bool:
        return self.kind is Kind.PASSWORD

    @property
    def field_name(self) -> str:
        """The name of the attribute of Config that has this setting's value."""
        return self.name.replace(".", "_")

    @property
    def is_dynamic(self) -> bool:
        """True if a client may change the setting on a running broker."""
        return self.dynamic is not Dynamic.NO

    def parse(self, raw: object) -> Any:
        """Parse and validate a text or an already typed value. Raises ConfigError, which names the setting."""
        value = parse_value(self.kind, raw, self.name)
        error = self.check(value) if self.check is not None else None
        if error is not None:
            raise ConfigError(f"{self.name}={HIDDEN if self.is_secret else show(raw)}: {error}")
        return value


def setting(
    kind: Kind,
    default: Any,
    doc: str,
    check: Check | None = None,
    *,
    dynamic: Dynamic = Dynamic.NO,
    unhonoured: str | None = None,
    internal: bool = False,
    per_listener: bool = False,
    per_mechanism: bool = False,
) -> Any:
    """Declare a field of Config. `default` is a value or a function that returns it.

    `unhonoured` is the reason why the setting has no effect; another value than the default then warns.
    `per_listener` also accepts `listener.name.<listener>.<name>` for one listener, and `per_mechanism`
    `listener.name.<listener>.<mechanism>.<name>` for one SASL mechanism of it.
    """
    row = Setting("", kind, default, doc, check, dynamic, unhonoured, internal, per_listener, per_mechanism)
    if callable(default):
        return field(default_factory=default, metadata={"setting": row})
    return field(default=default, metadata={"setting": row})


_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SIZE: Final = re.compile(r"([0-9]+)\s*([kKmMgGtT])(?:i?[bB])?")
_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64, Kind.SIZE: 64}
_UNIT_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DIGITS_MAX: Final = 100
_OUTSIDE_EVERY_RANGE: Final = 1 << 64


def parse_value(kind: Kind, raw: object, name: str) -> Any:
    """Parse `raw` as a value of `kind`. Raises ConfigError.

    TOML files and tests also pass values that have their type already.
    """
    if kind is Kind.BOOLEAN:
        return _parse_boolean(raw, name)
    if kind is Kind.LIST:
        return _parse_list(raw, name)
    if kind is Kind.STRING:
        if isinstance(raw, str):
            return raw.strip()
        raise ConfigError(f"{name}={show(raw)}: expected text")
    if kind is Kind.PASSWORD:
        if isinstance(raw, str):
            return Secret(raw.strip())
        if isinstance(raw, Secret):
            return raw
        raise ConfigError(f"{name}: expected text")
    if kind is Kind.DOUBLE:
        return _parse_double(raw, name)
    return _parse_integer(kind, raw, name)


def _parse_boolean(raw: object, name: str) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else ""
    # As in Kafka, "yes" and "1" are rejected, because a typing error must not count as false.
    if word not in ("true", "false"):
        raise ConfigError(f"{name}={show(raw)}: expected true or false")
    return word == "true"


def _parse_list(raw: object, name: str) -> tuple[str, ...]:
    if isinstance(raw, str):
        raw = raw.split(",")
    if isinstance(raw, Sequence) and all(isinstance(item, str) for item in raw):
        # Empty and repeated elements are dropped, as by Kafka. Callers that refuse them use list_problem().
        return tuple(dict.fromkeys(item.strip() for item in raw if item.strip()))
    raise ConfigError(f"{name}={show(raw)}: expected names separated by commas")


def list_problem(name: str, text: str, *, may_repeat: bool = False) -> str | None:
    """Return Kafka's error for a list with an empty or a repeated element, or None.

    An empty text is an empty list. Configuration files and stored values are read more leniently, because such a list
    must not keep a broker from starting.
    """
    if not text.strip():
        return None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        return f"Configuration '{name}' values must not be empty."
    if len(set(items)) < len(items) and not may_repeat:
        return f"Configuration '{name}' values must not be duplicated."
    return None


def _parse_double(raw: object, name: str) -> float:
    is_number = isinstance(raw, (int, float)) and not isinstance(raw, bool)
    if not is_number and not (isinstance(raw, str) and _DOUBLE.fullmatch(raw.strip())):
        raise ConfigError(f"{name}={show(raw)}: expected a number")
    try:
        value = float(raw)  # type: ignore[arg-type]
    except OverflowError:  # An integer of TOML can be larger than every double.
        value = math.inf
    if not math.isfinite(value):
        raise ConfigError(f"{name}={show(raw)}: outside the range of a 64-bit floating-point number")
    return value


def parse_digits(text: str) -> int:
    """Parse decimal digits with an optional sign. A number of very many digits becomes one outside every range.

    int() raises ValueError for more than 4,300 digits, and a client can send 32,767.
    """
    return int(text) if len(text) <= _DIGITS_MAX else _OUTSIDE_EVERY_RANGE


def _parse_integer(kind: Kind, raw: object, name: str) -> int:
    text = raw.strip() if isinstance(raw, str) else ""
    # Exclude bool, because in Python True is an int, but `true` is no number in a configuration.
    if isinstance(raw, int) and not isinstance(raw, bool):
        value = int(raw)
    elif _INTEGER.fullmatch(text):
        value = parse_digits(text)
    elif kind is Kind.SIZE and (match := _SIZE.fullmatch(text)):
        value = parse_digits(match[1]) * _UNIT_BYTES[match[2].lower()]
    else:
        units = ", or one with a unit such as 64MiB" if kind is Kind.SIZE else ""
        raise ConfigError(f"{name}={show(raw)}: expected a whole number{units}")
    # Java's ranges, because clients read these values into ints and longs.
    limit = 1 << (_BITS[kind] - 1)
    if not -limit <= value < limit:
        raise ConfigError(f"{name}={show(raw)}: outside the range of a {_BITS[kind]}-bit number")
    return value


def wire_text(value: object) -> str | None:
    """Format a value as Kafka does in DescribeConfigs and files. None and secrets become None (null)."""
    if value is None or isinstance(value, Secret):
        return None
    # Java writes true and false, and bool is a subclass of int in Python, so check it first.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


# Parts of a text that can have a URL. The functions below search each match once: a client can send 32 kB of "://", and
# a regular expression that looks for the end of a URL from each of them would take seconds.
_URL_WITH_USER: Final = re.compile(r"[^\s,]+")
_URL_WITH_QUERY: Final = re.compile(r"\S+")


def without_url_secrets(text: str) -> str:
    """Hide user, password and query of every URL in a text: `https://[hidden]@host/keys?[hidden]`."""
    if "://" not in text:
        return text
    return _URL_WITH_QUERY.sub(_hide_query, without_url_user(text))


def without_url_user(text: str) -> str:
    """Hide user and password of every URL in a text, but not its query."""
    return _URL_WITH_USER.sub(_hide_user, text) if "://" in text else text


def _hide_user(found: re.Match[str]) -> str:
    # The user and password end at the last @, because a password can have an @ that is not escaped.
    before, mark, rest = found.group().partition("://")
    user, at, host = rest.rpartition("@")
    return f"{before}{mark}{HIDDEN}{at}{host}" if user else found.group()


def _hide_query(found: re.Match[str]) -> str:
    before, mark, rest = found.group().partition("://")
    place, question, query = rest.partition("?")
    return f"{before}{mark}{place}{question}{HIDDEN}" if place and query else found.group()


def show(raw: object) -> str:
    """Format a raw value for a message: short, on one line, and without the secrets of a URL."""
    # repr() raises ValueError for an integer of more than 4,300 digits, which TOML allows. hex() has no limit.
    if isinstance(raw, int) and raw.bit_length() > 64:
        raw = hex(raw)
    text = without_url_secrets(raw if isinstance(raw, str) else repr(raw))
    # Escape control characters, because they could rewrite the line of the log or of the terminal.
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 80 else text[:77] + "..."


def at_least(low: float) -> Check:
    """Return a check that a value is at least `low`."""
    return Check(f"at least {low}", lambda value: None if value >= low else f"must be at least {low}")


def power_of_two(low: int, high: int) -> Check:
    """Return a check that a value is a power of two from `low` to `high`, inclusive."""
    valid = f"a power of two from {low} to {high}"

    def problem(value: int) -> str | None:
        # A power of two has one bit, and subtracting 1 clears it and sets the lower ones.
        is_fine = low <= value <= high and value & (value - 1) == 0
        return None if is_fine else f"must be {valid}"

    return Check(valid, problem)


def between(low: float, high: float) -> Check:
    """Return a check that a value is from `low` to `high`, inclusive."""
    valid = f"from {low} to {high}"
    return Check(valid, lambda value: None if low <= value <= high else f"must be {valid}")


def one_of(*words: str) -> Check:
    """Return a check that a value is one of these words."""
    valid = f"one of {', '.join(words)}"
    return Check(valid, lambda value: None if value in words else f"must be {valid}")


def some_of(*words: str) -> Check:
    """Return a check that a list has at least one of these words and no other."""
    valid = f"some of {', '.join(words)}"
    return Check(valid, lambda value: None if value and set(value) <= set(words) else f"must name {valid}")


def any_of(*words: str) -> Check:
    """Return a check that a list has only these words. It may be empty."""
    valid = f"some of {', '.join(words)}"
    return Check(
        f"empty, or {valid}",
        lambda value: None if set(value) <= set(words) else f"must be empty or name {valid}",
    )
