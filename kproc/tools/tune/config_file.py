"""Editor that changes settings in a configuration file and preserves every other byte.

It supports both formats of `kproc serve --config`: Kafka's server.properties, and TOML with dotted, quoted or nested
keys. It replaces the value in a line that sets one of the names, and adds lines for the other names. Then it parses the
new text. If other settings would change, it raises ConfigError and changes nothing.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.sources import parse_properties
from kproc.broker.config.values import ConfigError
from kproc.common.regular_file import FILE_BYTES_MAX, read_regular

_COMMENT: Final = "# by kproc tune"
# A line `key = value # comment`. Groups: key, equals sign with its blanks, value, and the rest with any comment.
_TOML_LINE: Final = re.compile(
    r"""(?P<key>\s*(?:"[^"]*"|'[^']*'|[\w.\- "'])+?)(?P<eq>\s*=\s*)"""
    r"""(?P<value>"(?:\\.|[^"\\])*"|'[^']*'|[^\s#"'\[{]+)(?P<rest>\s*(?:\#.*)?)"""
)
_TOML_TABLE: Final = re.compile(r"\s*\[(?P<name>[^\[\]]+)\]\s*(?:#.*)?")
_PROPERTIES_LINE: Final = re.compile(
    r"(?P<head>\s*(?P<key>[^\s=:#!\\][^\s=:\\]*)(?:\s*[=:]\s*|\s+))(?P<value>[^\\]*)"
)


def edited(text: str, settings: Mapping[str, str], *, is_toml: bool) -> str:
    """Return the text with the settings changed.

    Raises ConfigError if other settings would change, or if one of these is in a form that cannot be edited.
    """
    new = _edit_toml(text, settings) if is_toml else _edit_properties(text, settings)
    before, after = (_flat(each, is_toml=is_toml) for each in (text, new))
    if {**before, **settings} != after:
        wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise ConfigError(
            f"the configuration file sets one of these settings in a form that kproc cannot edit; change it "
            f"by hand: {wanted}"
        )
    return new


def names(text: str, *, is_toml: bool) -> set[str]:
    """Return the names of the settings in the text."""
    return set(_flat(text, is_toml=is_toml))


def read(path: Path) -> str:
    """Return the file's text with its newlines unchanged, or "" if it does not exist. Raise ConfigError on errors."""
    try:
        # The file is replaced in the end, so reject a pipe at once: its open could block, and the measurement is long.
        return read_regular(path, FILE_BYTES_MAX).decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 at byte {error.start}, so it is not edited") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def diff(before: str, after: str, path: Path) -> str:
    """Return the change in the format of `diff -u`, or "" if nothing changes."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), str(path), f"{path} (tuned)", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)


def write(path: Path, text: str) -> None:
    """Replace the file atomically. Keep its mode, and replace the target of a symbolic link instead of the link."""
    target = path.resolve()
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | 0o644
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{target} is not a regular file, so it is not replaced; name another file")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
        Path(name).rename(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _edit_properties(text: str, settings: Mapping[str, str]) -> str:
    lines, missing = _lines(text), dict(settings)
    is_continued = False
    for index, line in enumerate(lines):
        body = line.rstrip("\r\n")
        match = None if is_continued else _PROPERTIES_LINE.fullmatch(body)
        is_continued = (len(body) - len(body.rstrip("\\"))) % 2 == 1
        if match is not None and match["key"] in settings:
            lines[index] = match["head"] + settings[match["key"]] + line[len(body) :]
            missing.pop(match["key"], None)
    end = _newline(text)
    if missing and lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    added = [f"{_COMMENT}{end}"] if missing else []
    return "".join([*lines, *added, *(f"{name}={value}{end}" for name, value in missing.items())])


def _edit_toml(text: str, settings: Mapping[str, str]) -> str:
    lines, missing = _lines(text), dict(settings)
    first_table = len(lines)
    table = ""
    for index, line in enumerate(lines):
        body = line.rstrip("\r\n")
        header = _TOML_TABLE.fullmatch(body)
        if header is not None or body.lstrip().startswith("[["):
            first_table = min(first_table, index)
            table = (_toml_key(header["name"]) or "?") + "." if header is not None else "?."
            continue
        match = _TOML_LINE.fullmatch(body)
        key = _toml_key(match["key"]) if match is not None else None
        if match is not None and key is not None and table + key in settings:
            name = table + key
            lines[index] = (
                match["key"] + match["eq"] + _toml_value(settings[name]) + match["rest"] + line[len(body) :]
            )
            missing.pop(name, None)
    if not missing:
        return "".join(lines)
    end = _newline(text)
    # Insert new lines above the first table, because lines below its header would belong to the table. Comments
    # directly above the header stay there.
    place = first_table
    while place > 0 and first_table < len(lines) and lines[place - 1].lstrip().startswith(("#", "\n", "\r")):
        place -= 1
    if place > 0 and not lines[place - 1].endswith(("\n", "\r")):
        lines[place - 1] += end
    added = [
        f"{_COMMENT}{end}",
        *(f'"{name}" = {_toml_value(value)}{end}' for name, value in missing.items()),
    ]
    return "".join([*lines[:place], *added, *lines[place:]])


def _toml_value(value: str) -> str:
    return value if value.isdecimal() else f'"{value}"'


def _toml_key(text: str) -> str | None:
    """Return a bare, dotted or quoted key as one dotted name, or None if it is not a key."""
    try:
        return next(iter(_flatten(tomllib.loads(f"{text.strip()} = 0"), "")))[0]
    except (ValueError, RecursionError, StopIteration):
        return None


def _flat(text: str, *, is_toml: bool) -> dict[str, str]:
    if not is_toml:
        return parse_properties(text)
    try:
        return {name: str(value) for name, value in _flatten(tomllib.loads(text), "")}
    except RecursionError:
        raise ConfigError("the configuration file is not TOML: it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number of more than 4,300 digits.
        raise ConfigError(f"the configuration file is not TOML: {error}") from error


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
