"""SpecTable: strict reader of a TOML specification. The parser reads each key by name and type; unread keys are errors.

Every error has the line of its key. `tomllib` does not return lines, so config/toml_lines.py finds them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kproc.broker.config.toml_lines import KeyPath, key_lines
from kproc.common.regular_file import read_bounded_text

_AT_LINE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


class SpecError(Exception):
    """A specification is invalid. The message is one line: file, line, key, reason."""

    def __init__(self, message: str, *, path: KeyPath = (), line: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


def show(path: KeyPath) -> str:
    """Format a path of keys as `source[1].watermark.delay`. Indexes count from 1."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


class Places:
    """The line number of each key in a specification's file, for error messages."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self._lines = key_lines(text)

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def error(self, path: KeyPath, message: str) -> SpecError:
        named = f"{show(path)}: " if path else ""
        line = self.line(path)
        return SpecError(f"{self.file}:{line}: {named}{' '.join(message.split())}", path=path, line=line)


def parse_toml(text: str, file: str) -> tuple[dict[str, Any], Places]:
    """Parse TOML and return its values and their lines. Raise SpecError with the line of a syntax error."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise SpecError(f"{file}:1: no TOML: it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number of more than 4,300 digits.
        message = str(error)
        found = _AT_LINE.search(message)
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        raise SpecError(f"{file}:{line}: no TOML: {_AT_LINE.sub('', message)}") from None
    return values, Places(file, text)


def read_text(path: Path, shown: str) -> str:
    """Read a specification. Raise SpecError with the reason. `shown` is the path for messages."""
    try:
        return read_bounded_text(path)
    except OSError as error:
        raise SpecError(f"{shown}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown}: not UTF-8 at byte {error.start}") from None


class SpecTable:
    """A table of the specification. `finish` rejects the keys that were not read."""

    def __init__(self, values: Mapping[str, Any], places: Places, path: KeyPath) -> None:
        self._values = values
        self._places = places
        self._asked: list[str] = []
        self.path = path

    def error(self, key: str | None, message: str) -> SpecError:
        return self._places.error(self.path if key is None else (*self.path, key), message)

    def key_of(self, path: KeyPath) -> str | None:
        """Return the key of this table that an error's path contains, or None if it contains none."""
        depth = len(self.path)
        key = path[depth] if path[:depth] == self.path and len(path) > depth else None
        return key if isinstance(key, str) and key in self._values else None

    def without(self, key: str) -> SpecTable:
        """Return a copy without `key`, so that the caller can parse the rest and find further errors.

        If `key` is `name`, it becomes "unnamed", because a name is required.
        """
        left = {k: v for k, v in self._values.items() if k != key}
        return SpecTable(left | ({"name": "unnamed"} if key == "name" else {}), self._places, self.path)

    def has(self, key: str) -> bool:
        self._mark_read(key)
        return key in self._values

    def any(self, key: str) -> Any:
        """Return the value of any type, or None if the key is missing. The caller validates it."""
        self._mark_read(key)
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """Return a non-empty string, or None if the key is missing."""
        value = self.any(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, not {_kind(value)}")
        if not value.strip():
            raise self.error(key, "is empty")
        self._reject_nul(key, value)
        return value

    def need_text(self, key: str, hint: str = "") -> str:
        value = self.text(key)
        if value is None:
            raise self.error(None, f"{key} is missing{self._hint([key]) or hint}")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        value = self.text(key)
        if value is not None and value not in allowed:
            raise self.error(key, f"{value!r} is none of {', '.join(allowed)}{did_you_mean(value, allowed)}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.any(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, not {_kind(value)}")
        return value

    def integer(self, key: str, low: int = 1) -> int | None:
        value = self.any(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"expected a whole number, not {_kind(value)}")
        if value < low:
            raise self.error(key, f"{value} is below {low}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings. A single string counts as a list of one."""
        value = self.any(key)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.error(key, f"expected a list of strings, not {_kind(value)}")
        self._reject_nul(key, *items)
        return tuple(items)

    def scalars(self, key: str) -> dict[str, str]:
        """Return a table of strings, numbers and booleans as strings, because Spark's options are strings."""
        value = self.any(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table, not {_kind(value)}")
        answer = {}
        for name, item in flattened(value):
            if isinstance(item, bool):
                answer[name] = str(item).lower()
            elif isinstance(item, (str, int, float)):
                answer[name] = str(item)
            else:
                raise self._places.error(
                    (*self.path, key, name), f"expected a string or a number, not {_kind(item)}"
                )
        return answer

    def table(self, key: str) -> SpecTable | None:
        value = self.any(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table, not {_kind(value)}")
        return SpecTable(value, self._places, (*self.path, key))

    def tables(self, key: str) -> list[SpecTable]:
        """Return an array of tables; empty if the key is missing."""
        value = self.any(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, f"expected [[{key}]], not {_kind(value)}")
        return [SpecTable(item, self._places, (*self.path, key, number)) for number, item in enumerate(value)]

    def one_of(self, keys: Sequence[str], what: str) -> str:
        """Return the only key of `keys` that is present. Raise SpecError if none or several are.

        what: names the missing thing in the message, such as "the target of sink lake".
        """
        found = [key for key in keys if self.has(key)]
        if not found:
            raise self.error(None, f"{what} is missing: one of {', '.join(keys)}{self._hint(keys)}")
        if len(found) > 1:
            raise self.error(found[1], f"contradicts {found[0]}: use only one of {', '.join(keys)}")
        return found[0]

    def finish(self) -> None:
        """Raise SpecError for keys of this table that were not read, because they are unknown."""
        for key in self._values:
            if key not in self._asked:
                raise self.error(key, f"unknown key{did_you_mean(key, self._asked) or self._list_known()}")

    def _hint(self, keys: Sequence[str]) -> str:
        """Return a hint about a misspelled key that resembles one of `keys`, such as `topik`."""
        for key in self._values:
            if key not in self._asked and difflib.get_close_matches(key, keys, 1):
                return f"; {key} (line {self._places.line((*self.path, key))}) is unknown"
        return ""

    def _list_known(self) -> str:
        return f"; there are {', '.join(sorted(set(self._asked)))}"

    def _reject_nul(self, key: str, *texts: str) -> None:
        """Raise SpecError if a text contains the character NUL, because no path and no name can."""
        if any("\0" in text for text in texts):
            raise self.error(key, "contains the character NUL")

    def _mark_read(self, key: str) -> None:
        if key not in self._asked:
            self._asked.append(key)


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield (dotted name, value) of nested tables: TOML's `kafka.acks = 1` is one option, not a table `kafka`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean topic?`, or an empty string if no known name is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _kind(value: object) -> str:
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a number"),
        (str, "a string"),
        (list, "a list"),
        (dict, "a table"),
        (datetime, "a date and time"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)
