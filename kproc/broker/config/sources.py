"""Parsers of the sources of settings: `--set name=value`, a TOML file, Kafka's server.properties, a command's flags.

They validate only the syntax. build.py validates names and values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kproc.broker.config.values import ConfigError, show
from kproc.common.regular_file import read_bounded


class Flag(NamedTuple):
    """A command-line option for a setting, with its value."""

    option: str
    name: str
    value: object


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` strings. Raise ConfigError for a name with two values."""
    settings: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set {show(item)}: expected name=value")
        if settings.setdefault(name, value.strip()) != value.strip():
            # Do not show the values, because they may be secrets.
            raise ConfigError(f"--set {name} is given twice with different values")
    return settings


class FileValue(NamedTuple):
    """A value of a file and its line number."""

    value: object
    line: int


def read_settings_file(path: Path) -> dict[str, FileValue]:
    """Parse a `.toml` file as TOML and any other file as Kafka's server.properties. Return the values by name.

    Raises ConfigError if the file cannot be read or parsed.
    """
    try:
        raw = read_bounded(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if path.suffix.lower() == ".toml":
        return _parse_toml(raw, path)
    return {name: FileValue(*found) for name, found in _properties(_decode(raw)).items()}


def _decode(raw: bytes) -> str:
    """Decode UTF-8, or Latin-1 if it is not UTF-8. Editors write UTF-8; Java's Properties define Latin-1."""
    try:
        # utf-8-sig also removes the byte order mark that some editors write.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _parse_toml(raw: bytes, path: Path) -> dict[str, FileValue]:
    # Imported here, because most starts read no TOML, and a start should take half a second in all.
    import tomllib

    from kproc.broker.config.toml_lines import key_lines

    try:
        settings = list(_flatten(tomllib.loads(raw.decode("utf-8")), ""))
    except RecursionError:
        raise ConfigError(f"{path} is not TOML: it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML: it is not UTF-8 at byte {error.start}") from error
    except ValueError as error:  # TOMLDecodeError, or a number of more than 4,300 digits.
        # max.connections and max.connections.per.ip cannot both be dotted keys, because one is a prefix of the other.
        # Quoted names always work, so the message suggests them.
        raise ConfigError(
            f'{path} is not TOML: {error} (names may be quoted: "num.io.threads" = 2)'
        ) from error
    lines = {".".join(map(str, key)): line for key, line in key_lines(raw.decode("utf-8")).items()}
    return {name: FileValue(value, _line_of(name, lines)) for name, value in settings if value is not None}


def _line_of(name: str, lines: Mapping[str, int]) -> int:
    """Return the line of the setting, or of the inline table around it."""
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return lines.get(name, 1)


def _flatten(tables: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values. In TOML `hours` in the table [log.retention] is the key log.retention.hours."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's Properties format: comments, `=`, `:` or a blank as separator, escapes, continued lines.

    If a name occurs several times, the last value counts.
    """
    return {name: value for name, (value, _) in _properties(text).items()}


def _properties(text: str) -> dict[str, tuple[str, int]]:
    """Return the value and the line number of each name. If a name occurs several times, the last line counts."""
    settings: dict[str, tuple[str, int]] = {}
    for number, line in _logical_lines(text):
        match = _KEY.match(line)
        if match is None:
            # Unreachable, because every part of the pattern may be empty. The type checker needs the branch.
            continue
        settings[_unescape(match[1])] = (_unescape(line[match.end() :]), number)
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line and the text of each entry, with its continuation lines joined."""
    pending, began = "", 0
    for number, physical in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        # As in Java, blanks in front of a line do not count, so that a continued value can be indented.
        line = physical.lstrip(" \t\f")
        # Look for a comment only at the start of an entry, because the sign inside a continued line belongs to its
        # value.
        if not pending and (not line or line[0] in "#!"):
            continue
        began = began if pending else number
        backslashes = len(line) - len(line.rstrip("\\"))
        # An even number of backslashes is a sequence of escaped ones, so only an odd one continues the line.
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield began, pending + line
        pending = ""
    if pending:
        yield began, pending


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(replace, text)
