"""Mistakes: everything that is wrong with a specification in one run, instead of the first thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kproc.pipeline.toml_table import SpecError, Table

_T = TypeVar("_T")


class Mistakes:
    """What was found so far."""

    def __init__(self) -> None:
        self._found: list[SpecError] = []

    def of(self, make: Callable[[Table], _T], table: Table) -> _T | None:
        """What `make` reads out of a table, or None, with every mistake that it finds there.

        It stops at the first. So the key of that is taken away and it is asked again; what it then misses, or says of
        the key that was taken away, is of our making and no mistake.
        """
        left, removed = table, list[str]()
        while True:
            try:
                made = make(left)
            except SpecError as error:
                key = left.key_of(error.path)
                is_ours = bool(removed) and (key is None or any(each in str(error).partition("; there are ")[0] for each in removed))
                if not is_ours:
                    self._found.append(error)
                if key is None or is_ours:
                    return None
                removed.append(key)
                left = left.without(key)
            else:
                return None if removed else made

    def run(self, check: Callable[[], object]) -> None:
        """One more check that says at most one thing."""
        try:
            check()
        except SpecError as error:
            self._found.append(error)

    def add(self, errors: Iterable[SpecError]) -> None:
        self._found += errors

    def raise_all(self) -> None:
        """One SpecError with a line for each, in the order of the file, if there are any."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            ordered = sorted(self._found, key=lambda error: error.line)
            raise SpecError("\n  ".join([f"{len(ordered)} mistakes:", *map(str, ordered)]))
